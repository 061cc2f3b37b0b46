"""What is remembered of what members ask: shared by jobs that are alike, and gone with them."""

from __future__ import annotations

import pytest
from support.pretend import Pretend
from trainyard.cycle import wishes
from trainyard.world.inventory import Inventory
from trainyard.world.records import Fabric

NO_FABRICS: dict[str, Fabric] = {}


@pytest.fixture
def cluster() -> Pretend:
    """Nodes of two machines, which are apart by what their networks add."""
    cluster = Pretend().with_nodes(spines=2, leaves=4, per_leaf=4)
    for n, name in enumerate(cluster.nodes):
        kind = "p5.48xlarge" if n % 2 else "p4d.24xlarge"
        cluster.nodes[name].labels["node.kubernetes.io/instance-type"] = kind  # type: ignore[index]
        cluster.nodes[name].allocatable["vpc.amazonaws.com/efa"] = 32 if n % 2 else 4  # type: ignore[index]
    return cluster


def test_jobs_that_are_alike_share_the_names_of_their_nodes(cluster: Pretend) -> None:
    jobs = [cluster.submit(f"job-{n}", 2) for n in range(50)]
    inventory = Inventory.of(cluster.world())
    found = [wishes.wished(inventory, NO_FABRICS, job) for job in jobs]
    assert len(found[0].wishes) > 1
    assert len({id(wish.among) for one in found for wish in one.wishes}) == len(found[0].wishes)


def test_what_was_worked_out_for_a_job_goes_with_it(cluster: Pretend) -> None:
    jobs = [cluster.submit(f"job-{n}", 2, checkpoint={"volume": "checkpoints", "keep": n + 1}) for n in range(20)]
    inventory = Inventory.of(cluster.world())
    for job in jobs:
        wishes.wished(inventory, NO_FABRICS, job)
        wishes.likely_settings(inventory, NO_FABRICS, job)
    memory = wishes._memory(inventory)
    assert (len(memory.wishes), len(memory.likely), len(memory.parts)) == (20, 20, 1)
    wishes.forget(inventory, {job.uid for job in jobs[:5]})
    assert (set(memory.wishes), len(memory.likely)) == ({job.uid for job in jobs[:5]}, 5)


def test_a_job_that_was_edited_is_worked_out_anew_in_the_place_of_what_it_was(cluster: Pretend) -> None:
    inventory = Inventory.of(cluster.world())
    job = cluster.submit("job", 2)
    before = wishes.wished(inventory, NO_FABRICS, job)
    assert wishes.wished(inventory, NO_FABRICS, job) is before
    cluster.edit("job", nodes=3)
    assert wishes.wished(inventory, NO_FABRICS, cluster.job("job")) is not before
    assert len(wishes._memory(inventory).wishes) == 1
