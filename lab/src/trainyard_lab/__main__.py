"""A whole cluster on this machine: ``python -m trainyard_lab up|down|status|prepare|kubectl ...``.

``up`` may be called at any time: it starts what is missing and leaves the rest alone. ``down`` leaves nothing behind,
also after a crash half-way.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainyard_lab import build, fabric, images, kubectl, nodes, packages
from trainyard_lab.controlplane import ControlPlane, Settings
from trainyard_lab.layout import Lab
from trainyard_lab.oci import Image
from trainyard_lab.processes import ProcessError
from trainyard_lab.progress import say, step
from trainyard_lab.torch_folder import torch_folder

# Kubelets renew their lease every 10 s; a node that misses two is lost. Kubernetes' own 50 s would be most of a test.
NODE_GRACE_SECONDS = 20
CHANGING = "another run changes the lab; this one waits for it"
EXPECTED = (build.BuildError, packages.PackagesMissing, ProcessError)


def control_plane(lab: Lab) -> ControlPlane:
    """The control plane of a lab, whether it runs or not: on all addresses, advertised on the fabric."""
    settings = Settings(
        bind_address="0.0.0.0", advertise_address=lab.host_address, node_grace_seconds=NODE_GRACE_SECONDS
    )
    return ControlPlane(lab.run, settings)


def prepare(lab: Lab) -> tuple[Mapping[str, Path], Sequence[Image]]:
    """Make all that is made once, the servers and the images side by side; returns the programs and the images.

    Images wait for disk and network, servers for the processor: together they take hardly longer than the servers.
    """
    packages.ensure_packages()
    with ThreadPoolExecutor(max_workers=2) as side_by_side:
        made = side_by_side.submit(images.made, lab.cache)
        programs = side_by_side.submit(build.build_all)
        torch_folder(lab.cache)
        return programs.result(), made.result()


def up(lab: Lab) -> None:
    programs, made = prepare(lab)
    plane = control_plane(lab)
    with build.lock("lab", CHANGING):
        fabric.network_up(lab.topology)
        with step("start the control plane"):
            plane.start()
        nodes.up(lab, plane, programs, made)
    say(f"the lab is up; export KUBECONFIG={plane.kubeconfig}")


def down(lab: Lab) -> None:
    with build.lock("lab", CHANGING):
        nodes.down(lab)
        control_plane(lab).stop()
        fabric.network_down(lab.topology)
        shutil.rmtree(lab.run, ignore_errors=True)
    say("the lab is down")


def status(lab: Lab) -> int:
    """Print what runs; 0 if all of it does."""
    if not lab.run.exists():
        say("the lab is down")
        return 1
    plane = control_plane(lab)
    ready = plane.is_ready()
    say(f"control plane: {'ready' if ready else 'not ready'} ({', '.join(plane.running()) or 'nothing runs'})")
    found = nodes.status(lab, plane if ready else None)
    for one in found:
        health = {True: "Ready", False: "not Ready", None: "unknown to the API server"}[one.ready]
        say(f"{one.name} {one.place} {one.address}: {health} ({', '.join(one.programs) or 'nothing runs'})")
        say(f"    images: {', '.join(one.images) or 'none'}")
    services = nodes.services(lab)
    for name, runs in services.items():
        say(f"{name}: {'runs' if runs else 'does not run'}")
    return 0 if ready and all(one.ready for one in found) and all(services.values()) else 1


def run_kubectl(lab: Lab, arguments: Sequence[str]) -> None:
    """Become kubectl as the lab's administrator."""
    program = str(kubectl.program())
    environment = os.environ | {"KUBECONFIG": str(control_plane(lab).kubeconfig)}
    os.execve(program, ["kubectl", *arguments], environment)


COMMANDS: Mapping[str, tuple[Callable[[Lab], object], str]] = {
    "prepare": (prepare, "make all that is made once: servers, images"),
    "up": (up, "start the lab, or what is missing of it"),
    "down": (down, "stop the lab and leave nothing behind"),
    "status": (status, "say what runs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainyard_lab", description="A whole cluster on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, purpose) in COMMANDS.items():
        commands.add_parser(name, help=purpose)
    commands.add_parser("kubectl", help="kubectl as the lab's administrator")
    lab = Lab()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["kubectl"]:
        run_kubectl(lab, words[1:])  # past argparse, which would take kubectl's options for its own
    given = parser.parse_args(words)
    try:
        result = COMMANDS[given.command][0](lab)
    except EXPECTED as error:
        say(f"{given.command}: {error}")
        return 1
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
