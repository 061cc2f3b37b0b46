"""In what the members of a gang differ, by what each launcher found of its network when it started."""

from __future__ import annotations

from typing import Final

from trainyard.contract.alike import Unlike
from trainyard.lifecycle.gang import Gang
from trainyard.network.choice import likeliest
from trainyard.network.consistency import Report, compare
from trainyard.network.container import pod_of
from trainyard.network.derive import settings_for
from trainyard.network.profiles.model import Transport
from trainyard.network.reading import integer
from trainyard.world.records import Job, World

CROSS_NIC: Final = "NCCL_CROSS_NIC"
"""0: adapters of different rails do not talk."""


def compared(world: World, job: Job, gang: Gang) -> Unlike | None:
    """None until all members have said what they found, and once that was looked at."""
    status = job.status
    if job.spec is None or status.started_at is None or status.network is None or status.network.compared:
        return None
    reports, unfit, faults, doubts = [], list[str](), list[str](), list[str]()
    for seat, node in zip(gang.seats, gang.nodes, strict=True):
        said = seat.status
        if said is None or said.attempt != status.attempt or said.network is None:
            return None
        line = f"{node}: {'; '.join(said.network.faults)}"
        if not said.network.faults:
            reports.append(Report(node, seat.rank, said.network.alike))
        elif job.spec.network.preflight or said.network.stranded:
            unfit.append(node)
            faults.append(line)
        else:  # what a node lacks by itself is for the preflight to judge
            doubts.append(line)
    nodes = [world.nodes[name] for name in dict.fromkeys(gang.nodes) if name in world.nodes]
    network, pod = likeliest(nodes, world.fabrics, job.spec.network.fabric), pod_of(job.spec)
    roce = network.profile is not None and network.profile.transport is Transport.ROCE
    settings = settings_for(job.spec, nodes, world.fabrics)
    written = {**{setting.name: setting.value for setting in settings.settings}, **pod.said}
    crosses = integer(written.get(CROSS_NIC, "")).value != 0
    found = compare(reports, roce=roce, cross_nic=crosses, accelerators=pod.accelerators)
    blamed = tuple(dict.fromkeys((*unfit, *found.nodes)))
    return Unlike((*faults, *found.fatal), blamed, (*doubts, *found.costly))
