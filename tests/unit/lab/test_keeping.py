"""What the keeper does about nodes, claims and volumes, decided on the objects alone."""

from pathlib import Path
from typing import Any

import pytest
from trainyard_lab import keeper, storage
from trainyard_lab.labels import extended_resources

RUN = Path("/run/lab")


def a_claim(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "checkpoints", "namespace": "team", "uid": "7f3c"},
        "spec": {
            "storageClassName": storage.CLASS,
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
    }


def test_a_restarted_kubelet_has_lost_what_no_plugin_told_it():
    assert keeper.lost_resources({"status": {"allocatable": {"cpu": "2"}}}) == extended_resources()
    assert keeper.lost_resources({"status": {"allocatable": {**extended_resources(), "nvidia.com/gpu": "0"}}}) == {
        "nvidia.com/gpu": "8"
    }
    assert keeper.lost_resources({"status": {"allocatable": extended_resources()}}) == {}


def test_a_node_that_has_just_registered_has_no_status_yet():
    assert keeper.lost_resources({"metadata": {"name": "node-0"}}) == extended_resources()


def test_a_claim_gets_one_volume_bound_to_it_alone():
    volume = storage.volume_for(a_claim(), RUN)
    assert volume["metadata"]["name"] == "pvc-7f3c"
    assert volume["spec"]["claimRef"]["uid"] == "7f3c"
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    assert volume["spec"]["hostPath"]["path"] == "/run/lab/volumes/pvc-7f3c"


def test_only_an_unbound_claim_of_the_labs_class_wants_a_volume():
    assert storage.wants_volume(a_claim())
    assert not storage.wants_volume(a_claim(volumeName="pvc-7f3c"))
    assert not storage.wants_volume(a_claim(storageClassName="fast"))
    going = a_claim()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not storage.wants_volume(going)


@pytest.mark.parametrize(("phase", "removed"), [("Bound", False), ("Available", False), ("Released", True)])
def test_a_volume_goes_when_its_claim_is_gone(phase: str, removed: bool):
    volume = storage.volume_for(a_claim(), RUN) | {"status": {"phase": phase}}
    assert storage.is_ours_to_reclaim(volume) is removed


def test_a_volume_that_somebody_else_made_is_left_alone():
    volume = storage.volume_for(a_claim(), RUN) | {"status": {"phase": "Released"}}
    volume["metadata"]["annotations"] = {storage.PROVISIONED_BY: "example.com/nfs"}
    assert not storage.is_ours_to_reclaim(volume)
