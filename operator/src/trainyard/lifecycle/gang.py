"""The gang of a job's current attempt: for each rank its pod, its launcher's last answer and its node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainyard.api.conditions import ConditionType
from trainyard.api.template import trainer_container
from trainyard.contract.codec import ContractError
from trainyard.contract.plan import Mark
from trainyard.contract.preflight import PreflightResult
from trainyard.contract.status import Commit, LastWords, Status, decode_last_words
from trainyard.lifecycle import conditions, deadlines, roster
from trainyard.world.records import Answer, Job, Node, Pod, Running, Terminated


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank. pod: None where there is none (not yet, or not any more).

    node_lost: since when its node is not to be counted on (NotReady, or gone), None while it is. doubted: since when it is
    NotReady, where it is counted on nevertheless. answered: the status remembers that every launcher of this attempt answered
    once, perhaps another operator. attempt: the current one; awaited: the member was kept from an earlier one, and its launcher
    has to take the plan of this one first.
    """

    rank: int
    member: int
    pod: Pod | None = None
    answer: Answer | None = None
    node_lost: float | None = None
    answered: bool = False
    attempt: int = 0
    awaited: bool = False
    doubted: float | None = None

    @property
    def ended(self) -> Terminated | None:
        """How the member's part in this attempt ended: its trainer container has (a sidecar may still run), or its workers have
        and its launcher, which could begin another attempt, says how."""
        if self.pod is None or not self.taken:
            return None
        if isinstance(self.pod.trainer, Terminated):
            return self.pod.trainer
        said = self.status
        if said is None or said.ended is None or self.answer is None:
            return None
        finished = said.ended_time if said.ended_time is not None else self.answer.time
        return Terminated(said.ended.exit, "Waiting", "its workers have ended", finished)

    @property
    def taken(self) -> bool:
        """Whether it plays in this attempt: it was made for it, or has taken its plan."""
        return not self.awaited or self.status is not None or self._left is not None

    @property
    def refused(self) -> bool:
        """It would not take the plan of this attempt."""
        return not self.taken and self.answer is not None and bool(self.answer.plan_refused)

    @property
    def running(self) -> Running | None:
        """Since when the trainer container runs."""
        return self.pod.trainer if self.pod is not None and isinstance(self.pod.trainer, Running) else None

    @property
    def words(self) -> LastWords | None:
        """The last words of this attempt: what the launcher left, or what it says that it would leave."""
        return self._left or (self.status.ended if self.status is not None else None)

    @property
    def _left(self) -> LastWords | None:
        if self.pod is None or not isinstance(self.pod.trainer, Terminated):
            return None
        try:
            words = decode_last_words(self.pod.trainer.message)
        except ContractError:
            return None
        return words if words.attempt == self.attempt else None

    @property
    def said(self) -> Status | None:
        """The launcher's last answer, where it speaks of this pod."""
        if self.pod is None or self.answer is None or self.answer.status is None:
            return None
        return self.answer.status if self.answer.status.pod_uid == self.pod.uid else None

    @property
    def status(self) -> Status | None:
        """The same, where it speaks of the current attempt."""
        said = self.said
        return said if said is not None and said.attempt == self.attempt else None

    @property
    def commit(self) -> Commit | None:
        """The newest checkpoint that this member spoke of."""
        spoken = [
            source.commit for source in (self.words, self.status) if source is not None and source.commit is not None
        ]
        return max(spoken, key=lambda commit: (commit.attempt, commit.step), default=None)

    @property
    def step(self) -> int:
        """The last step that it finished, as far as it said."""
        return max((source.step for source in (self.words, self.status) if source is not None), default=0)

    @property
    def heard(self) -> float | None:
        """When it last answered; None where it never did. Of an answer to another operator nobody knows when it came: it counts
        from our first question."""
        if self.running is None or self.answer is None:
            return None
        if self.said is not None:
            return self.answer.time
        return self.answer.asked if self.answered else None

    def silent(self, now: float) -> bool:
        """It answered before and has not for too long, although it was asked; one that has ended need not answer."""
        if self.heard is None or self.answer is None:
            return False
        return bool(self.answer.error) and now - self.heard > deadlines.SILENT

    def unreached(self, now: float) -> bool:
        """It runs, was asked, and never answered, although it had the time."""
        if self.running is None or self.said is not None or self.answer is None or self.answered:
            return False
        return now - max(self.running.started, self.answer.asked) > deadlines.UNREACHED

    def settled(self, now: float) -> bool:
        """Nothing more is to be expected of it: ended, gone, or deleted where no kubelet carries it out any more."""
        if self.pod is None or self.pod.over:
            return True
        return self.pod.deleted is not None and (self.node_lost is not None or abandoned(self.pod, now))


@dataclass(frozen=True, slots=True)
class Gang:
    """The seats of the current attempt in rank order. others: the job's pods that have no seat in it."""

    seats: tuple[Seat, ...]
    others: tuple[Pod, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where the plan has the members, in rank order; "" for one whose pod is not there."""
        return tuple(
            seat.pod.membership.node if seat.pod is not None and seat.pod.membership is not None else ""
            for seat in self.seats
        )

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods of the current attempt that exist."""
        return tuple(seat.pod for seat in self.seats if seat.pod is not None)

    @property
    def commit(self) -> Commit | None:
        """The newest checkpoint that any member spoke of."""
        spoken = [seat.commit for seat in self.seats if seat.commit is not None]
        return max(spoken, key=lambda commit: (commit.attempt, commit.step), default=None)

    @property
    def resumed(self) -> Mark | None:
        """The commit that this attempt started from, as far as a member has said; all loaded the same."""
        spoken = (source.resumed for seat in self.seats for source in (seat.words, seat.status) if source is not None)
        return next((mark for mark in spoken if mark is not None), None)

    @property
    def preflight(self) -> PreflightResult | None:
        """How this attempt's preflight ended, as far as a member has said; it ended the same for all."""
        spoken = [source for seat in self.seats for source in (seat.words, seat.status) if source is not None]
        return next((source.preflight for source in spoken if source.preflight is not None), None)

    @property
    def step(self) -> int:
        """The furthest step that any member said it finished."""
        return max((seat.step for seat in self.seats), default=0)

    def unheard(self, now: float) -> bool:
        """All launchers fell silent within a moment, on several nodes that are ready: the operator does not reach them, which
        says nothing about the gang. Half the time of a verdict: all must be counted before the first is given."""
        left = [seat for seat in self.seats if seat.running is not None and seat.ended is None]
        heard = [seat.heard for seat in left if seat.heard is not None]
        if len(heard) < len(left) or any(seat.node_lost is not None or seat.doubted is not None for seat in left):
            return False
        if len({seat.pod.node for seat in left if seat.pod is not None}) < 2:
            return False
        together = max(heard) - min(heard) <= deadlines.heard(len(self.seats))
        return together and deadlines.SILENT / 2 < now - max(heard) <= deadlines.UNHEARD


def muster(
    job: Job,
    pods: Iterable[Pod],
    answers: Mapping[str, Answer],
    nodes: Mapping[str, Node],
    now: float,
    disrupted: bool = False,
) -> Gang:
    """Find the current attempt's pod for every rank. pods: all pods of this job. disrupted: most nodes fell NotReady together."""
    playing = roster.numbers(job) if is_open(job) and job.spec is not None else ()
    known = playing if isinstance(playing, range) else frozenset(playing)
    mine: dict[int, Pod] = {}
    others: list[Pod] = []
    for pod in pods:
        membership = pod.membership
        if membership is None or pod.namespace != job.namespace:
            continue  # a label is anybody's to write: what is in another namespace is not this job's
        if membership.member in known and membership.attempt <= job.status.attempt:
            mine[membership.member] = pod
        else:
            others.append(pod)
    handing = job.status.roster is not None and job.status.reservation is not None
    kept_below, answered, attempt = roster.first_new(job) if handing else 0, _answered(job), job.status.attempt
    recent, seats = deadlines.heard(len(answers)), list[Seat]()  # the launchers of all jobs are asked in turn
    for rank, member in enumerate(playing):
        own = mine.pop(member, None)
        answer = answers.get(own.uid) if own is not None else None
        since = _node_lost(own, nodes, now)
        counted_on = since is not None and own is not None and own.node in nodes
        if counted_on and not disrupted:
            counted_on = _speaks(own, answer, since, recent, now)
        lost, doubted = (None, since) if counted_on else (since, None)
        seats.append(Seat(rank, member, own, answer, lost, answered, attempt, member < kept_below, doubted))
    others += mine.values()
    return Gang(tuple(seats), tuple(sorted(others, key=lambda pod: pod.name)))


def disrupted(nodes: Iterable[Node], now: float) -> bool:
    """Whether the heartbeats of most nodes, three at least, were missed at once: by the share from which Kubernetes' node
    lifecycle controller evicts nobody (--unhealthy-zone-threshold 0.55). A node that joins and is not ready yet did not fall."""
    fell = ready = 0
    for node in nodes:
        ready += node.ready
        fell += node.missed and now - node.ready_since < deadlines.DISRUPTED
    return fell >= 3 and fell > 0.55 * (fell + ready)


def abandoned(pod: Pod, now: float) -> bool:
    """It was deleted, and its kubelet has not carried that out although it had the time."""
    return pod.killed is not None and now > pod.killed + deadlines.KILLED


def came_from(job: Job, gang: Gang) -> int:
    """The step that the current attempt began with: what its members said they loaded, else what they were told to load."""
    if gang.resumed is not None:
        return gang.resumed.step
    return job.status.resume.step if job.status.resume is not None else 0


def is_open(job: Job) -> bool:
    """Whether an attempt is under way: it was started and has not been closed."""
    return job.status.started_at is not None


def _answered(job: Job) -> bool:
    controlled = conditions.find(job.status, ConditionType.CONTROLLED)
    return controlled is not None and controlled.status == "True"


def _node_lost(pod: Pod | None, nodes: Mapping[str, Node], now: float) -> float | None:
    """Since when the node of a pod is not to be counted on."""
    if pod is None:
        return None
    node = nodes.get(pod.node)
    if pod.node and node is None:
        return now
    if node is not None and not node.ready and now - node.ready_since >= deadlines.NOT_READY:
        return node.ready_since
    return None


def _speaks(pod: Pod | None, answer: Answer | None, since: float | None, recent: float, now: float) -> bool:
    """Whether the launcher of a member answers although its node is NotReady since then: what failed is between kubelet and API
    server. Who was not asked since then is so within `recent` seconds; an operator that has just taken over has asked nobody."""
    if pod is None or since is None or not pod.ip or not isinstance(pod.trainer, Running):
        return False
    if answer is None:
        return True
    said = answer.status
    if said is None or said.pod_uid != pod.uid:
        return False
    if answer.time <= since:
        return not answer.error and now <= since + recent
    return answer.time > now - recent


def overdue(seat: Seat, job: Job, now: float) -> bool:
    """A member that was kept for this attempt and has not taken its plan in time, since when it could be asked."""
    if seat.taken or job.status.started_at is None:
        return False
    since = max(job.status.started_at, seat.answer.asked if seat.answer is not None else now)
    return now - since > deadlines.handover(roster.size(job))


def runs_own_script(job: Job) -> bool:
    """Whether the user's own command trains: it need not report anything, so its launcher's answer has to do."""
    container = trainer_container(job.spec.template) if job.spec is not None else None
    return container is not None and bool(container.get("command"))


def speechless(job: Job, gang: Gang) -> bool:
    """Whether a script of the user's own ran and no member ever reported a step or a checkpoint."""
    return runs_own_script(job) and gang.step == 0 and gang.commit is None
