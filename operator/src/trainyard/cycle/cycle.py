"""The operator's whole judgement: `cycle(world, now)` says what is to be done, and nothing else.

First every job is looked at by itself (`lifecycle.decide`): who has to leave, who has ended, who waits. Then those that wait
get their turn in the order of priority, then age: nodes that are free, nodes that somebody leaves anyway, and at last the nodes
of jobs of lower priority. A job that gets nodes has them reserved in its own status before anybody is asked to leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainyard.api.conditions import Reason
from trainyard.contract.plan import encode
from trainyard.contract.requests import Stop
from trainyard.cycle import actions as act
from trainyard.cycle.claims import Claim, claims, holds, waited_for
from trainyard.cycle.compared import compared
from trainyard.cycle.grow import asked_to_grow, due_to_grow, may_grow
from trainyard.cycle.marking import mark
from trainyard.cycle.members import make_members, outdated, plan_of
from trainyard.cycle.observe import observe
from trainyard.cycle.queue import serve
from trainyard.cycle.reuse import misfits, plans_over
from trainyard.cycle.room import rooms
from trainyard.cycle.waiting import Waiting
from trainyard.cycle.wishes import forget
from trainyard.lifecycle import deadlines
from trainyard.lifecycle import needs as life
from trainyard.lifecycle.decide import decide, left_alone
from trainyard.lifecycle.gang import Gang, abandoned, disrupted, muster
from trainyard.lifecycle.goodput import settle
from trainyard.lifecycle.needs import Decision, Surroundings
from trainyard.lifecycle.repair import comes_back_at_once
from trainyard.lifecycle.report import only_tells
from trainyard.topology.moved import moved
from trainyard.topology.tree import Tree
from trainyard.world.inventory import Inventory
from trainyard.world.observed import fresh
from trainyard.world.records import Job, Pod, Verdict, World


def cycle(world: World, now: float, inventory: Inventory | None = None) -> act.Outcome:
    """Everything that has to be done at this instant, job by job; the same for the same world and time.

    inventory: one that followed earlier worlds saves counting this one anew; it is refreshed, and changes no decision.

    A job whose judgement raises is named in the outcome and left as it is: at three in the morning one job that trips a bug
    must not leave all the others alone.
    """
    whole, world = world, fresh(world, now)
    broken: dict[str, act.Broken] = {}
    pods = _by_job(world.pods.values())
    jobs = sorted(world.jobs.values(), key=lambda job: (job.created, job.namespace, job.name))
    cut = disrupted(world.nodes.values(), now)
    gangs = {job.uid: muster(job, pods.get(job.uid, ()), world.answers, world.nodes, now, cut) for job in jobs}
    wanted, held = claims(jobs), holds(world, jobs)
    inventory = Inventory() if inventory is None else inventory
    inventory.refresh(world)
    forget(inventory, world.jobs.keys())
    tree = inventory.tree
    blind = _blind(gangs.values(), now)
    decisions: dict[str, Decision] = {}
    for job in jobs:
        claim, gang = wanted.get((job.uid, job.status.attempt), Claim()), gangs[job.uid]
        try:
            around = Surroundings(
                wanted_by=claim.by,
                wanted_nodes=claim.nodes,
                reserved_nodes=waited_for(world, held, job) if _follows(job, gang, now) else frozenset(),
                misfits=misfits(world, job, gang) if _follows(job, gang, now) else frozenset(),
                blind=blind,
                disrupted=cut,
                leaving=world.namespace_leaving(job.namespace),
                refusal=_refusal(world, job, gang),
                moved=_moved(tree, job, gang),
                outdated=_may_be_outdated(job, gang) and outdated(world, tree, job),
                unlike=compared(world, job, gang),
            )
            decisions[job.uid] = decide(job, gangs[job.uid], around, now)
        except Exception as error:
            broken[job.uid] = act.Broken(job.uid, job.key, error)
            decisions[job.uid] = Decision(job.status)
    judged = [job for job in jobs if job.uid not in broken and not left_alone(job)]
    served = _queue(world, judged, gangs, decisions, inventory, now)
    turns: list[act.Turn] = []
    pause = deadlines.telling(sum(job.status.phase is None or not job.status.phase.ended for job in jobs))
    wakes: list[float] = []
    for job in jobs:
        decision, after = decisions[job.uid], served.get(job.uid)
        if isinstance(after, Exception):
            broken[job.uid] = act.Broken(job.uid, job.key, after)
            continue
        try:
            turn = _turn(world, tree, job, gangs[job.uid], decision, after, now, pause)
        except Exception as error:
            broken[job.uid] = act.Broken(job.uid, job.key, error)
            continue
        if turn.actions:
            turns.append(turn)
        grows = due_to_grow(job.with_status(decision.status))
        wakes += [w for w in (decision.wake, after.wake if after is not None else None) if w is not None]
        wakes += [grows] if grows is not None and grows > now else []
    marked, ends = mark(world, now)
    wakes += [ends] if ends is not None else []
    turns += [*_orphans(world, now), *observe(whole, tree, gangs, now), *marked]
    turns.sort(key=lambda turn: turn.tells)
    return act.Outcome(tuple(turns), min(wakes, default=None), tuple(broken.values()))


def _turn(
    world: World,
    tree: Tree,
    job: Job,
    gang: Gang,
    decision: Decision,
    after: Waiting | None,
    now: float,
    pause: float,
) -> act.Turn:
    """The status first, then what the job needs, then what the queue gave it. pause: between two writes of a status that only
    tells; what it would have told then is told by a later cycle."""
    status = after.status if after is not None else decision.status
    follow = after.actions if after is not None else ()
    todo = (*_carry_out(world, tree, job.with_status(status), gang, decision), *follow)
    if status == job.status:
        return act.Turn(job.uid, todo)
    tells = only_tells(job.status, status)
    last = job.status.goodput.until if job.status.goodput is not None else None  # it is accounted at each write
    if tells and last is not None and now - last < pause:
        return act.Turn(job.uid, todo)
    status = settle(job, status, gang, now)
    write = act.WriteStatus(job.namespace, job.name, job.uid, job.resource_version, status)
    return act.Turn(job.uid, (write, *todo), tells and not todo)


def _by_job(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if pod.membership is not None:
            found[pod.membership.job_uid].append(pod)
    return found


def _blind(gangs: Iterable[Gang], now: float) -> bool:
    """Whether most of several jobs fell silent together. Half the time of a verdict: all must be counted before the first is
    given."""
    asked = quiet = 0
    for gang in gangs:
        times = [seat.heard for seat in gang.seats if seat.heard is not None]
        if times:
            asked += 1
            quiet += now - max(times) > deadlines.SILENT / 2
    return quiet >= 2 and quiet * 2 > asked


def _follows(job: Job, gang: Gang, now: float) -> bool:
    """Whether another attempt may begin at once in pods of the last one."""
    return comes_back_at_once(job.status, now) and any(pod.live for pod in gang.others)


def _may_be_outdated(job: Job, gang: Gang) -> bool:
    """Whether an attempt was opened in which nobody plays yet: neither a pod that was made for it nor one that was kept and has
    taken its plan. Or some were kept that have not, and the specification by which they are told has just changed."""
    opened = job.status.reservation is not None and job.status.started_at is not None
    if not opened or job.spec is None or job.deleted is not None:
        return False
    edited = job.status.observed_generation < job.generation
    if edited and any(not seat.taken for seat in gang.seats):
        return True
    return not any(seat.pod is not None and seat.taken for seat in gang.seats)


def _moved(tree: Tree, job: Job, gang: Gang) -> str:
    """What the labels of a gang that trains tell otherwise than when it was placed; "" where they tell the same."""
    plan, trains = job.status.plan, job.status.running_at is not None
    nodes = gang.nodes
    if plan is None or not trains or "" in nodes:
        return ""
    return moved(tree, nodes, plan.spans, plan.ring_edges) or ""


def _refusal(world: World, job: Job, gang: Gang) -> str:
    """Why the API server does not take the next member of the attempt under way; "" where it has taken one since."""
    trial, started = world.trials.get(job.uid), job.status.started_at
    if trial is None or started is None or trial.verdict is not Verdict.WAIT:
        return ""
    taken = max((pod.created for pod in gang.pods), default=0.0)
    return trial.message if trial.time >= max(started, taken) else ""


def _queue(
    world: World,
    jobs: Sequence[Job],
    gangs: Mapping[str, Gang],
    decisions: dict[str, Decision],
    inventory: Inventory,
    now: float,
) -> dict[str, Waiting | Exception]:
    """jobs: those that could be judged; the pods of the others stay where they are. decisions: changed for who is to grow."""
    leaving = {pod.uid for pod in world.pods.values() if pod.deleted is not None and not abandoned(pod, now)}
    for job in jobs:
        status = decisions[job.uid].status
        # An attempt that this very cycle closes leaves pods whose phase lags behind the end of their trainers.
        closed = status.started_at is None
        if job.deleted is not None or closed or status.stop is not None or status.ending is not None:
            leaving.update(pod.uid for pod in gangs[job.uid].pods)
        leaving.update(pod.uid for pod in gangs[job.uid].others if not abandoned(pod, now))
    room = rooms(inventory, world, leaving)
    served = serve(world, jobs, gangs, decisions, room, inventory.tree, now)
    for job in may_grow(jobs, decisions, served, now):
        try:
            stop = asked_to_grow(world, job, gangs[job.uid], room, now)
        except Exception as error:
            served[job.uid] = error
            continue
        if stop is not None:
            decision = decisions[job.uid]
            said = f"attempt {stop.attempt} is asked to save and leave: there is room for all of its nodes now"
            told = life.Tell("Normal", Reason.GROWING, said)
            decisions[job.uid] = replace(decision, status=decision.status.but(stop=stop), needs=(told, *decision.needs))
            break
    return served


def _carry_out(world: World, tree: Tree, job: Job, gang: Gang, decision: Decision) -> list[act.Action]:
    todo: list[act.Action] = []
    plan: bytes | None = None
    for need in decision.needs:
        match need:
            case life.HoldJob():
                todo.append(act.HoldJob(job.namespace, job.name, job.uid, job.resource_version))
            case life.ReleaseJob():
                todo.append(act.ReleaseJob(job.namespace, job.name, job.uid, job.resource_version))
            case life.ReleasePod(pod):
                todo.append(act.ReleasePod(pod.namespace, pod.name, pod.uid))
            case life.DeletePod(pod, grace):
                todo.append(act.DeletePod(pod.namespace, pod.name, pod.uid, grace))
            case life.AskStop(pod, stop):
                request = Stop(attempt=stop.attempt, deadline=stop.deadline, reason=stop.reason)
                todo.append(act.AskStop(job.uid, pod.uid, pod.ip, request))
            case life.HandPlan(pod):
                plan = plan if plan is not None else _text_of_plan(world, tree, job)
                if plan:
                    todo.append(act.HandPlan(job.uid, pod.uid, pod.ip, plan))
            case life.Relabel(pod, rank):
                says = job.status.plan.digest if job.status.plan is not None else ""
                todo.append(act.Relabel(pod.namespace, pod.name, pod.uid, job.status.attempt, rank, says))
            case life.MakeMembers():
                present = frozenset(seat.rank for seat in gang.seats if seat.pod is not None)
                todo += make_members(world, tree, job, present, plans_over(job.status))
            case life.Tell(kind, reason, message):
                todo.append(act.Announce(job.namespace, job.name, job.uid, kind, reason, message))
    return todo


def _text_of_plan(world: World, tree: Tree, job: Job) -> bytes:
    plan = plan_of(world, tree, job)
    return encode(plan).encode() if plan is not None else b""


def _orphans(world: World, now: float) -> list[act.Turn]:
    """Pods whose job is gone: the garbage collector deletes them, and nobody reads their last words any more."""
    found: dict[str, list[act.Action]] = defaultdict(list)
    for pod in sorted(world.pods.values(), key=lambda pod: (pod.namespace, pod.name)):
        membership = pod.membership
        if membership is None or membership.job_uid in world.jobs or not pod.held:
            continue
        if pod.over or abandoned(pod, now):
            found[membership.job_uid].append(act.ReleasePod(pod.namespace, pod.name, pod.uid))
    return [act.Turn(job_uid, tuple(actions)) for job_uid, actions in found.items()]
