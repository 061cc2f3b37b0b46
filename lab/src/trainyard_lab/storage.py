"""Shared storage: each claim of the lab's storage class gets a folder that every node can mount.

All nodes see the machine's file system, so a hostPath volume is as shared as NFS would be. The folder goes when its claim
has gone, as with any class whose reclaim policy is Delete. `provide` and `reclaim` are called by the keeper for every
claim and volume that changes; both are idempotent.
"""

import shutil
from pathlib import Path

from trainyard_lab.api import Api, ApiError, Object

CLASS = "lab-shared"
PROVISIONER = "trainyard.dev/lab-folder"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


def folder_of(run_folder: Path, volume: str) -> Path:
    return run_folder.resolve() / "volumes" / volume


def storage_class() -> Object:
    """The class, the default one of the lab."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def wants_volume(claim: Object) -> bool:
    """Whether a claim is of the lab's class and has no volume yet."""
    spec, metadata = claim["spec"], claim["metadata"]
    return spec.get("storageClassName") == CLASS and not spec.get("volumeName") and "deletionTimestamp" not in metadata


def volume_for(claim: Object, run_folder: Path) -> Object:
    """The volume of a claim: bound to it alone, named after its uid, so that there is never a second."""
    name = f"pvc-{claim['metadata']['uid']}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "storageClassName": CLASS,
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim["metadata"]["namespace"],
                "name": claim["metadata"]["name"],
                "uid": claim["metadata"]["uid"],
            },
            "hostPath": {"path": str(folder_of(run_folder, name)), "type": "Directory"},
        },
    }


def is_ours_to_reclaim(volume: Object) -> bool:
    """Whether a volume was made here and its claim is gone."""
    provisioner = volume["metadata"].get("annotations", {}).get(PROVISIONED_BY)
    return provisioner == PROVISIONER and volume.get("status", {}).get("phase") in ("Released", "Failed")


def provide(api: Api, run_folder: Path, claim: Object) -> None:
    """Give a claim its volume if it wants one. Anybody may write: a pod's user is not the machine's."""
    if not wants_volume(claim):
        return
    volume = volume_for(claim, run_folder)
    folder = folder_of(run_folder, volume["metadata"]["name"])
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    try:
        api.create(VOLUMES, volume)
    except ApiError as error:
        if error.code != 409:
            raise


def reclaim(api: Api, run_folder: Path, volume: Object) -> None:
    """Remove a volume and its data once its claim is gone."""
    if is_ours_to_reclaim(volume):
        name = volume["metadata"]["name"]
        shutil.rmtree(folder_of(run_folder, name), ignore_errors=True)
        api.delete(f"{VOLUMES}/{name}")
