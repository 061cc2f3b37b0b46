"""The table of names: what the installed libraries read, no more and no less."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from trainyard.network.variables import NCCL_NAMES, NCCL_VERSION, RELICS, VARIABLES, is_read, nearest

NOT_VARIABLES = re.compile(
    r"NCCL_(ALL|ALLOC|ALLOC_HOST|BOOTSTRAP|CALL|COLL|DESTROY|ENV|GRAPH|INIT|NET|NVLS|P2P|PROFILE|PROXY|RAS|REG|SHM|SIGNAL"
    r"|SIGNAL_NONE|TUNING|GIN_CONNECTION_.+|GIN_\w+_(MAX_SIZE|VERSION)|GIN_IB_\w+_TAG|GIN_TYPE_.+|IB_(SL|TC)_DEFAULT"
    r"|\w+_INITIALIZER|IB_MAX_DEVS_PER_NIC|IB_RECV_WR_ID_DUMMY|IB_RESILIENCY_PORT_RECOVERY_ACK_MSG_ID"
    r"|IPC_(COLLECTIVE|SENDRECV)|LOG_.+|NET_DEVICE_.+|NET_MERGE_POLICY_.+|PARAM_(FLAG|TYPE)_.+)"
)
"""Names of constants and subsystems that stand in the library as texts."""


def library(package, path):
    """The installed package's library; the test is reported as not run where it is not installed."""
    for name in (package, package.replace("cu13", "cu12")):
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return found.version, Path(str(found.locate_file(path)))
    pytest.skip(f"{package} is not installed: the names are not checked against what it reads")


def texts(file, pattern):
    """Texts of a binary that match, each up to its terminating zero."""
    return {found[1].decode() for found in re.finditer(rb"(" + pattern + rb")\0", file.read_bytes())}


def test_the_names_are_those_that_the_installed_nccl_reads():
    version, file = library("nvidia-nccl-cu13", "nvidia/nccl/lib/libnccl.so.2")
    if version != NCCL_VERSION:
        pytest.skip(f"NCCL {version} is installed; the names are those of {NCCL_VERSION}")
    found = texts(file, rb"NCCL_[A-Z][A-Z0-9_]*")
    assert sorted(NCCL_NAMES - found) == []
    assert sorted(name for name in found - NCCL_NAMES if not NOT_VARIABLES.fullmatch(name)) == []


@pytest.mark.parametrize(
    ("file", "prefixes"), [("libtorch_cuda.so", ("TORCH_NCCL_",)), ("libtorch_cpu.so", ("TORCH_FR_", "GLOO_", "TP_"))]
)
def test_the_names_of_torch_and_gloo_are_read_by_the_installed_torch(file, prefixes):
    _, at = library("torch", f"torch/lib/{file}")
    if not at.exists():
        pytest.skip(f"this torch has no {file}: it is built without CUDA")
    found = at.read_bytes()
    ours = [name for name in VARIABLES if name.startswith(prefixes)]
    assert ours
    assert [name for name in ours if name.encode() not in found] == []


def test_relics_are_read_by_nobody():
    assert [name for name in RELICS if is_read(name)] == []


@pytest.mark.parametrize("name", ["NCCL_IB_HCA", "NCCL_FASTRAK_IFNAME", "NCCL_SHIMNET_X", "NCCL_TUNER_CONFIG_PATH"])
def test_names_of_nccl_and_of_its_plugins_are_known(name):
    assert is_read(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_QQQQQQQ", None),
    ],
)
def test_the_nearest_name_to_one_that_nobody_reads(name, meant):
    assert nearest(name) == meant


@pytest.mark.parametrize("name", sorted(NCCL_NAMES))
def test_a_name_is_its_own_nearest(name):
    assert nearest(name) == name
