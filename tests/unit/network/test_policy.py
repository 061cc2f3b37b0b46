"""What a job is told of the variables that it sets; they stand as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import GPU, a_fabric, a_spec, derived, some_nodes, values
from trainyard.network.settings import Source

ROCE = a_fabric(profile="roce", rdma={"dscp": 26, "ecn": 2, "devices": ["mlx5_0", "mlx5_1", "mlx5_10"]})
IB = a_fabric(profile="infiniband", rdma={"devices": ["mlx5_0", "mlx5_1", "mlx5_10"]})
EFA = a_fabric(profile="aws-efa")
TCP = a_fabric(kind="tcp", interface="eth0")
OCI = a_fabric(profile="oci-roce", rdma={"devices": ["mlx5_0"]})
SHARP = a_fabric(profile="coreweave-ib-sharp", rdma={"devices": ["ibp0"]})


def told(name, value, fabric=ROCE, **spec):
    """What a job hears that sets one variable, about that variable."""
    nodes = some_nodes(2, offers={"rdma/ib": 8, "vpc.amazonaws.com/efa": 8, "nvidia.com/rdma-vf": 16})
    before = derived(a_spec(**spec), nodes, fabric).warnings
    after = derived(a_spec(env={name: value}, **spec), nodes, fabric).warnings
    return [line for line in after if line not in before]


@pytest.mark.parametrize(
    ("name", "value", "fabric", "says"),
    [
        ("NCCL_IB_DISABLE", "1", ROCE, "over sockets, though the nodes have RoCEv2"),
        ("NCCL_NET", "socket", IB, "over sockets, though the nodes have InfiniBand"),
        ("NCCL_IB_HCA", "mlx5_1", ROCE, "of the network's 3 adapters it takes 2: mlx5_1, mlx5_10"),
        ("NCCL_IB_HCA", "mlx5_1", ROCE, "beginnings of names"),
        ("NCCL_IB_HCA", "=mlx5_9", ROCE, "means none of the network's adapters, mlx5_0, mlx5_1, mlx5_10"),
        ("NCCL_IB_HCA", "^mlx5_1", ROCE, "what not to take"),
        ("NCCL_IB_HCA", "=mlx5_0,=mlx5_1", ROCE, "= stands once"),
        ("NCCL_IB_HCA", "=^mlx5_0", ROCE, "= stands once"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", TCP, "pod-id-link0"),
        ("NCCL_SOCKET_IFNAME", "eth1", TCP, "eth10"),
        ("NCCL_SOCKET_IFNAME", "e", TCP, "single character"),
        ("NCCL_IB_GID_INDEX", "3", IB, "InfiniBand has no such tables"),
        ("NCCL_IB_GID_INDEX", "3", ROCE, "a pod's table of addresses is its own"),
        ("NCCL_IB_GID_INDEX", "1", OCI, "a pod's table of addresses is its own"),
        ("NCCL_IB_TC", "26", ROCE, "DSCP 6; write 106"),
        ("NCCL_IB_TC", "0", ROCE, "DSCP 0, which switches do not protect"),
        ("NCCL_IB_TC", "41", ROCE, "DSCP 10 and ECN 1; the network protects DSCP 26, which is 106"),
        ("NCCL_IB_TC", "106", IB, "InfiniBand switches do not look at it"),
        ("NCCL_IB_TIMEOUT", "22", ROCE, "after 137 s, later than the process group (120 s)"),
        ("NCCL_IB_TIMEOUT", "0", ROCE, "waits for ever"),
        ("NCCL_IB_ROCE_VERSION_NUM", "1", ROCE, "does not pass a router"),
        ("NCCL_P2P_DISABLE", "1", TCP, "costs bandwidth"),
        ("NCCL_SHM_DISABLE", "1", TCP, "costs bandwidth"),
        ("NCCL_ALGO", "Ring", TCP, "NCCL chooses by size"),
        ("NCCL_PROTO", "LL", TCP, "NCCL chooses by size"),
        ("NCCL_BUFFSIZE", "2097152", TCP, "NCCL chooses by size"),
        ("NCCL_NTHREADS", "512", TCP, "NCCL chooses by size"),
        ("NCCL_ALGO", "rong", TCP, "NCCL gives up at 'rong'"),
        ("NCCL_HOSTID", "a", TCP, "not safe"),
        ("NCCL_GRAPH_FILE", "/g.xml", TCP, "not safe"),
        ("NCCL_COMM_ID", "10.0.0.1:4000", TCP, "not safe"),
        ("NCCL_IB_HCAS", "=mlx5_0", ROCE, "reads no such variable; NCCL_IB_HCA is nearest"),
        ("NCCL_SOCKET_TIMEOUT_MS", "9", TCP, "nothing reads it; how often a connection is tried"),
        ("NCCL_IB_CUDA_SUPPORT", "1", ROCE, "nothing reads it"),
        ("NCCL_IB_DISABLE", "true", TCP, "'true' is read as 0"),
        ("NCCL_IB_TC", "106", EFA, "not driven by NCCL itself"),
        ("FI_PROVIDER", "efa", EFA, "no longer in use"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", TCP, "hangs for ever"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", TCP, "flight record"),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", TCP, "flight record"),
        ("GLOO_SOCKET_IFNAME", "=eth0", TCP, "gloo knows neither"),
        ("GLOO_SOCKET_IFNAME", "10.0.0.7", TCP, "looks like an address"),
        ("GLOO_SOCKET_IFNAME", "fd00::7", TCP, "looks like an address"),
        ("TP_SOCKET_IFNAME", "^lo", TCP, "gloo knows neither"),
        ("NCCL_MNNVL_ENABLE", "1", IB, "no channel of a ComputeDomain"),
        ("NCCL_CROSS_NIC", "2", a_fabric(profile="roce", rdma={"rails": "isolated"}), "write 0"),
        ("NCCL_TOPO_FILE", "/t.xml", IB, "one whole machine"),
        ("NCCL_NET_GDR_LEVEL", "phb", IB, "in capitals"),
    ],
)
def test_what_is_told(name, value, fabric, says):
    lines = told(name, value, fabric)
    assert lines
    assert all(line.startswith(f"{name}: ") for line in lines)
    assert any(says in line for line in lines), lines


@pytest.mark.parametrize(
    ("name", "value", "fabric"),
    [
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_1", ROCE),
        ("NCCL_SOCKET_IFNAME", "=eth0", TCP),
        ("NCCL_IB_TC", "106", ROCE),
        ("NCCL_IB_TC", "104", ROCE),
        ("NCCL_IB_TIMEOUT", "20", ROCE),
        ("NCCL_IB_DISABLE", "1", TCP),
        ("NCCL_IB_DISABLE", "0", ROCE),
        ("NCCL_NET", "IB", ROCE),
        ("NCCL_IB_GID_INDEX", "3", OCI),
        ("NCCL_IB_GID_INDEX", "-1", ROCE),
        ("NCCL_P2P_DISABLE", "0", TCP),
        ("NCCL_ALGO", "COLLNETCHAIN", SHARP),
        ("NCCL_DEBUG", "INFO", ROCE),
        ("NCCL_TUNER_CONFIG_PATH", "/t", ROCE),
        ("NCCL_FASTRAK_NUM_FLOWS", "2", ROCE),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", TCP),
        ("GLOO_SOCKET_IFNAME", "eth0.100", TCP),
        ("NCCL_IB_TC", "$(TC)", ROCE),
        ("NCCL_IB_DISABLE", "1", EFA),
        ("HOME", "/root", ROCE),
    ],
)
def test_what_needs_no_word(name, value, fabric):
    assert told(name, value, fabric) == []


@pytest.mark.parametrize("spec", [{"nodes": 1}, {"limits": {"cpu": "4"}, "nodes": 1}])
def test_sockets_are_no_loss_on_a_single_node(spec):
    assert told("NCCL_NET", "Socket", ROCE, **spec) == []


names = st.sampled_from(
    ["NCCL_IB_TC", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_ALGO", "NCCL_DEBUG", "NCCL_IB_TIMEOUT",
     "GLOO_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_MADE_UP", "NCCL_GRAPH_FILE"]
)  # fmt: skip
texts = st.text("^=,:0123456789abeimlnotx_x.", max_size=12)


@given(st.dictionaries(names, texts, max_size=6), st.sampled_from(["env", "wishes"]), st.sampled_from([ROCE, IB, EFA]))
def test_whatever_a_job_says_stands(said, place, fabric):
    settings = derived(a_spec(**{place: said}), some_nodes(2), fabric)
    ours = {setting.name for setting in settings.settings if setting.source is not Source.JOB}
    assert not ours & said.keys()
    wishes = {setting.name: setting.value for setting in settings.settings if setting.source is Source.JOB}
    assert wishes == (said if place == "wishes" else {})


def test_the_jobs_network_env_is_judged_before_its_templates():
    settings = derived(a_spec(env={"NCCL_IB_TC": "26"}, wishes={"NCCL_IB_TC": "106"}), some_nodes(2), ROCE)
    assert [line for line in settings.warnings if line.startswith("NCCL_IB_TC")] == []
    assert values(settings)["NCCL_IB_TC"] == "106"


def test_each_doubt_is_told_once():
    settings = derived(a_spec(limits={GPU: 8}, env={"NCCL_IB_TC": "26"}), some_nodes(2), ROCE)
    assert len(settings.warnings) == len(set(settings.warnings))
