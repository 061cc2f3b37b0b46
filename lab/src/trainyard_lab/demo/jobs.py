"""The jobs of the demonstration: the user's own sample, and the same with another size, length, priority or place."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[4]
SAMPLE: Final = ROOT / "manifests" / "samples" / "small-lm.yaml"
CHART: Final = ROOT / "charts" / "trainyard"

Object = dict[str, Any]

PRIORITIES: Final[Mapping[str, int]] = {"demo-low": 100, "demo-middle": 200, "demo-high": 300}
ONE_SPINE: Final = {"within": {"level": "spine", "required": True}}


def sample() -> Object:
    """The TrainingJob of manifests/samples/small-lm.yaml."""
    (job,) = [o for o in yaml.safe_load_all(SAMPLE.read_text()) if o["kind"] == "TrainingJob"]
    assert isinstance(job, dict)
    return job


def priority_classes() -> list[Object]:
    """Three classes, so that somebody can be asked to leave."""
    return [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        for name, value in PRIORITIES.items()
    ]


def like_the_sample(name: str, **changes: Any) -> Object:
    """The sample under another name. changes: of its spec, by field; `steps` changes the trainer's."""
    job = copy.deepcopy(sample())
    job["metadata"]["name"] = name
    steps = changes.pop("steps", None)
    if steps is not None:
        job["spec"]["trainer"]["steps"] = steps
    job["spec"].update(changes)
    return job


def victim() -> Object:
    """V: exactly the sample's training, so that its history can be compared with the undisturbed one; low priority."""
    return like_the_sample("v", priorityClassName="demo-low")


def short() -> Object:
    """F: two nodes for a short while."""
    return like_the_sample("f", nodes=2, steps=60, priorityClassName="demo-middle")


def bystander() -> Object:
    """W: wants the same four nodes as U, with less right to them."""
    return like_the_sample("w", steps=10, placement=ONE_SPINE)


def urgent() -> Object:
    """U: four nodes within one spine, high priority."""
    return like_the_sample("u", steps=120, priorityClassName="demo-high", placement=ONE_SPINE)


def measurement(nodes: int, mebibytes: Sequence[float], orders: Sequence[int]) -> Object:
    """A job of all nodes that measures what the order of ranks is worth on this network, for messages of each size.

    orders: how many random ones; one number for all sizes, or one for each. Its pods ask for a processor each, as training pods
    do: without that every other process of the machine goes first, and the shortest times suffer most.
    """
    job = like_the_sample("measure", nodes=nodes)
    del job["spec"]["trainer"], job["spec"]["checkpoint"]
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    del pod["volumes"], container["volumeMounts"]
    container["resources"]["requests"] = {"cpu": "1"}
    container["command"] = ["python3", "-m", "trainyard_trainer.measure"]
    container["args"] = ["orders", "--mebibytes", *map(str, mebibytes), "--orders", *map(str, orders)]
    return job
