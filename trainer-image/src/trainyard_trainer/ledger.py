"""What a step sends, counted where it is sent: at the process groups.

Logical bytes: the whole buffer of a collective, as its caller hands it over, whatever the backend makes of it: gathered size of
an all-gather, size before the sum of a reduce-scatter, the buffer of an all-reduce, what a send sends. Wire bytes: what the
interface of this rank sends of it, by the backend's factor (trainyard.planner.collectives.wire_factor). Seconds: from when a
collective begins until it is seen to be done, or on a GPU those of its kernel (kernels.py); of several that are on their way
together each counts.

A step sends what every other step sends, so one is counted, and the others pay nothing for it (`listening.py`).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from trainyard.api.trainer import TrainerConfig
from trainyard.planner.collectives import Collective, wire_factor
from trainyard.planner.model import model_of
from trainyard.planner.traffic import GANG, Bytes, Mesh, traffic

from trainyard_trainer import kernels
from trainyard_trainer.listening import Listening
from trainyard_trainer.model.loss import IN_LOSS
from trainyard_trainer.parallel.mesh import AXES, PIPELINE, REPLICATE, SHARD, TENSOR, axes_of, index, size
from trainyard_trainer.parallel.places import Places
from trainyard_trainer.report import Reporter

COUNTED_STEP: Final = 3
"""Of an attempt: the first two also connect, allocate and arrange buckets."""


class Line(NamedTuple):
    """What is counted together. level: the broadest of the network's that the group crosses."""

    axis: str
    kind: Bytes
    collective: Collective
    level: str = ""


class Sent(NamedTuple):
    """Of one line in one step: bytes of all collectives, bytes that this rank puts on the wire, how many there were."""

    size_bytes: float = 0.0
    wire_bytes: float = 0.0
    collectives: int = 0

    def and_of(self, collective: Collective, members: int, size_bytes: float, backend: str, count: int = 1) -> Sent:
        """With more of the same line."""
        wire_bytes = size_bytes * wire_factor(collective, members, backend)
        return Sent(self.size_bytes + size_bytes, self.wire_bytes + wire_bytes, self.collectives + count)


def predicted(config: TrainerConfig, mesh: DeviceMesh, places: Places) -> dict[Line, Sent]:
    """What this rank should send in a step, by the planner's formulas (trainyard.planner.traffic)."""
    sizes = Mesh(**{axis.name: axis.size for axis in axes_of(mesh)})
    me, backend = mesh.get_rank(), _backend(mesh)
    lines: dict[Line, Sent] = defaultdict(Sent)
    for entry in traffic(model_of(config), sizes, stage=index(mesh, PIPELINE), nested=places.nested(mesh)):
        first = me - me // entry.stride % entry.size * entry.stride
        level = places.crossed(range(first, first + entry.size * entry.stride, entry.stride))
        line = Line(entry.axis, entry.kind, entry.collective, level)
        lines[line] = lines[line].and_of(
            entry.collective, entry.size, entry.bytes * entry.count, backend, round(entry.count)
        )
    return {line: sent for line, sent in lines.items() if sent.size_bytes}


class Heard(NamedTuple):
    """A collective in a process group; line: None where it is not counted."""

    group: str
    line: Line | None
    collective: Collective
    size_bytes: float


class Ledger:
    """What this rank takes part in during one step.

    lines: what was counted; seconds: by line, without those of which they are not known.
    """

    def __init__(self, mesh: DeviceMesh, places: Places, look: kernels.Recorded = kernels.recorded) -> None:
        """look: for the kernels of the step, on a GPU."""
        self._axes = {name: frozenset(_members(mesh.get_group(name))) for name in AXES if size(mesh, name) > 1}
        self._places, self._backend, self._lock = places, _backend(mesh), threading.Lock()
        self.lines: dict[Line, Sent] = defaultdict(Sent)
        self.seconds: dict[Line, float] = defaultdict(float)
        self._on_their_way: list[tuple[float, float]] = []
        self._look, self._heard = look, list[Heard]()
        self._began_ns = self._ended_ns = 0

    @contextmanager
    def counting(self, wanted: bool, together: bool = False) -> Iterator[None]:
        """Count what is sent meanwhile, if it is wanted. together: by all ranks, to agree: control."""
        if not wanted:
            yield
            return
        done = self._done if self._backend == "gloo" else None
        self._began_ns = self._began_ns or time.time_ns()
        with Listening(lambda group, collective, buffers: self._line(group, collective, buffers, together), done):
            yield
        self._ended_ns = time.time_ns()

    @property
    def communication_seconds(self) -> float:
        """In which anything was on its way, however much of it at once."""
        total, until = 0.0, 0.0
        for began, ended in sorted(self._on_their_way):
            total += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return total

    def exposed_seconds(self, waited_seconds: float | None) -> float | None:
        """Of that, the time in which training waited for it. None on a GPU, where the host waits for nothing.

        waited_seconds: that the training's thread was inside collectives in the same step (trainyard_trainer.waiting).
        """
        if waited_seconds is None or self._backend != "gloo":
            return None
        return min(waited_seconds, self.communication_seconds)

    def tell(
        self, report: Reporter, expected: Mapping[Line, Sent], step_seconds: float, waited_seconds: float | None
    ) -> None:
        """Report what was counted beside what the planner predicts of it. waited_seconds: as for `exposed_seconds`. On a GPU it
        waits until the kernels of the step are measured, a second at most."""
        if self._backend == "nccl":
            found = kernels.settled(self._began_ns, self._ended_ns, self._look)
            self.seconds.update(dealt(self._heard, found) if found is not None else {})
        for line in sorted({*self.lines, *expected}):
            counted, formula = self.lines.get(line, Sent()), expected.get(line, Sent())
            report.sent(
                line.axis,
                line.kind,
                line.collective,
                level=line.level,
                size_bytes=round(counted.size_bytes),
                count=counted.collectives,
                predicted_bytes=formula.size_bytes,
                wire_bytes=counted.wire_bytes,
                predicted_wire_bytes=formula.wire_bytes,
                seconds=self.seconds.get(line) if counted.collectives else 0.0,
            )
        exposed = self.exposed_seconds(waited_seconds)
        if exposed is not None:
            report.overlapped(self.communication_seconds, exposed, step_seconds)

    def _line(
        self, group: dist.ProcessGroup, collective: Collective, buffers: Sequence[Tensor], together: bool
    ) -> Line | None:
        """Count one collective in a process group; None for a group of one, or one that is none of the mesh's."""
        members = _members(group)
        size_bytes = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
        axis = (
            GANG if together else next((name for name, whole in self._axes.items() if whole.issuperset(members)), None)
        )
        line = None
        if axis is not None and len(members) > 1:
            data = Bytes.CONTROL if together else kind(axis, collective, buffers)
            line = Line(axis, data, collective, self._places.crossed(members))
        with self._lock:
            self._heard.append(Heard(str(group.group_name), line, collective, size_bytes))
            if line is not None:
                self.lines[line] = self.lines[line].and_of(collective, len(members), size_bytes, self._backend)
        return line

    def _done(self, line: Line | None, began: float, ended: float) -> None:
        """line: None where only the time counts, as that of what is received."""
        with self._lock:
            self._on_their_way.append((began, ended))
            if line is not None:
                self.seconds[line] += ended - began


def dealt(heard: Sequence[Heard], recorded: Sequence[kernels.Kernel]) -> dict[Line, float]:
    """The seconds of each line, on a GPU.

    A group runs its collectives in the order in which they were called: the n-th that was heard is the n-th that was recorded.
    What a pipeline sends is in one kernel with what it receives meanwhile: its lines have the group's time by their bytes. Lines
    of which anything else was recorded than heard are left out.
    """
    seconds: dict[Line, float] = defaultdict(float)
    unknown: set[Line] = set()
    for group in {one.group for one in heard}:
        of_all = [one for one in heard if one.group == group and one.collective is not Collective.SEND_RECEIVE]
        times = [one.seconds for one in recorded if one.group == group and not one.point_to_point]
        if len(of_all) != len(times):
            unknown.update(one.line for one in of_all if one.line is not None)
            times = [0.0] * len(of_all)
        sent = [one for one in heard if one.group == group and one.collective is Collective.SEND_RECEIVE]
        size_bytes = sum(one.size_bytes for one in sent)
        in_batches = [one.seconds for one in recorded if one.group == group and one.point_to_point]
        if sent and not in_batches:
            unknown.update(one.line for one in sent if one.line is not None)
        each = [sum(in_batches) * one.size_bytes / size_bytes for one in sent]
        for one, taken in zip([*of_all, *sent], [*times, *each], strict=True):
            if one.line is not None:
                seconds[one.line] += taken
    return {line: total for line, total in seconds.items() if line not in unknown}


def kind(axis: str, collective: Collective, buffers: Sequence[Tensor]) -> Bytes:
    """Which class of data it is. Of a step's forward and backward passes, not of what all ranks agree on."""
    if axis == REPLICATE:
        return Bytes.GRADIENTS  # replicas have nothing else to tell each other, whatever form it has
    if axis == SHARD:
        return Bytes.PARAMETERS if collective is Collective.ALL_GATHER else Bytes.GRADIENTS
    if axis == TENSOR and collective is Collective.ALL_REDUCE and not IN_LOSS.get():
        return Bytes.GRADIENTS  # of what all ranks of the group hold whole: the scales of norms
    if axis == PIPELINE and buffers[0].dim() != 3:
        return Bytes.GRADIENTS  # of a tied embedding; the residual stream has three dimensions
    return Bytes.ACTIVATIONS


def _backend(mesh: DeviceMesh) -> str:
    return "nccl" if mesh.device_type == "cuda" else "gloo"


def _members(group: dist.ProcessGroup) -> tuple[int, ...]:
    """By its ranks a group is known, whatever object stands for it: no two axes have the same."""
    return tuple(dist.get_process_group_ranks(group))
