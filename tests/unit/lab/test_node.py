"""What a node's programs are told."""

import json
import tomllib
from pathlib import Path

from trainyard_lab import dns, labels, node
from trainyard_lab.layout import Lab

LAB = Lab(run=Path("/run/lab"), cache=Path("/cache"))
FIRST, SECOND = LAB.topology.nodes[:2]


def kubelet(one: node.Node) -> dict[str, object]:
    return node.kubelet_settings(LAB, one, node.folders(LAB, one), Path("/run/lab/pki/ca.crt"))


def test_nothing_that_a_node_keeps_is_another_nodes():
    for setting in ("containerRuntimeEndpoint", "podLogsDir", "volumePluginDir", "resolvConf"):
        assert kubelet(FIRST)[setting] != kubelet(SECOND)[setting], setting
    one, other = (
        tomllib.loads(node.containerd_settings(node.folders(LAB, which))) for which in (FIRST, SECOND)
    )  # fmt: skip
    assert one["root"] != other["root"]
    assert one["state"] != other["state"]
    assert one["grpc"]["address"] != other["grpc"]["address"]


def test_containerd_leaves_oom_scores_alone_and_keeps_pods_namespaces_in_its_own_folder():
    cri = tomllib.loads(node.containerd_settings(node.folders(LAB, FIRST)))["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["restrict_oom_score_adj"] is True
    assert cri["netns_mounts_under_state_dir"] is True
    assert cri["sandbox_image"] == node.SANDBOX_IMAGE


def test_pods_get_addresses_of_their_nodes_subnet_and_keep_them_between_nodes():
    plugins = json.loads(node.cni_settings(LAB, SECOND, node.folders(LAB, SECOND)))["plugins"]
    assert plugins[0]["ipam"]["ranges"] == [[{"subnet": "10.244.1.0/24"}]]
    assert plugins[0]["ipMasq"] is False


def test_pods_ask_the_host_for_names():
    assert kubelet(FIRST)["clusterDNS"] == [LAB.host_address]
    assert f"bind {LAB.host_address}" in dns.settings(LAB, Path("/run/lab/coredns/kubeconfig"))


def test_a_node_says_where_it_is_and_what_it_has_as_a_real_one_does():
    said = labels.labels(SECOND)
    assert (said[labels.SPINE], said[labels.LEAF]) == ("spine-a", "leaf-a1")
    assert said["nvidia.com/gpu.count"] == labels.extended_resources()["nvidia.com/gpu"]
    assert said["feature.node.kubernetes.io/rdma.available"] == "true"
