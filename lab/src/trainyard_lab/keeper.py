"""What a real cluster's agents keep doing, as one process: device plugins and the storage provisioner.

A kubelet that starts anew forgets extended resources that it did not get from a plugin; here they are set again as soon
as the node shows without them. Each claim of the lab's storage class gets its volume, and loses it when it is deleted.

    python -m trainyard_lab.keeper RUN_FOLDER
"""

import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from trainyard_lab import storage
from trainyard_lab.api import Api, ApiError, Object
from trainyard_lab.cluster import NODES
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.labels import extended_resources
from trainyard_lab.progress import say

NAME = "keeper"
WATCH_SECONDS = 300
PAUSE_SECONDS = 1


def lost_resources(node: Object) -> dict[str, str]:
    """The extended resources that a node should have and does not show as allocatable."""
    shown = node.get("status", {}).get("allocatable", {})
    return {name: amount for name, amount in extended_resources().items() if shown.get(name) != amount}


def keep_resources(api: Api, node: Object) -> None:
    """Set what is lost: the capacity, from which the kubelet derives what is allocatable, and at once that too."""
    if lost := lost_resources(node):
        status = {"capacity": lost, "allocatable": lost}
        api.merge(f"{NODES}/{node['metadata']['name']}/status", {"status": status})


def follow(api: Api, path: str, act: Callable[[Object], None]) -> None:
    """Act on every object and every change of it, for ever; what fails is said and tried again."""
    while True:
        try:
            for item in api.changes(path, WATCH_SECONDS):
                act(item)
        except (ApiError, OSError, HTTPException, ValueError) as error:
            say(f"{path}: {error}; trying again")
            time.sleep(PAUSE_SECONDS)


def main(run_folder: Path) -> None:
    """Keep at it until killed."""
    api = Api(ControlPlane(run_folder))
    duties: list[tuple[str, Callable[[Object], None]]] = [
        (NODES, lambda node: keep_resources(api, node)),
        (storage.CLAIMS, lambda claim: storage.provide(api, run_folder, claim)),
        (storage.VOLUMES, lambda volume: storage.reclaim(api, run_folder, volume)),
    ]
    threads = [threading.Thread(target=follow, args=(api, path, act), daemon=True) for path, act in duties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
