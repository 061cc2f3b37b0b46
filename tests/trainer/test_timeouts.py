"""A rank that stalls holds the others as long as the plan says, in whichever process group they wait for it."""

import os

import pytest
import torch
import torch.distributed as dist
from support.processes import run
from torch import nn
from trainyard.api.trainer import OptimizerConfig
from trainyard.contract.plan import Axis
from trainyard_trainer.checkpoint.agreement import PATIENCE, Agreement
from trainyard_trainer.parallel import hierarchical, server, timeouts
from trainyard_trainer.parallel.mesh import build
from trainyard_trainer.parallel.rendezvous import Place, meet

RANKS = 4
SECONDS = 37.0


def mesh(*sizes):
    names = ("replicate", "shard", "tensor")[: len(sizes)]
    return build([Axis(name, size) for name, size in zip(names, sizes, strict=True)], RANKS, "cpu")


def made(rank):
    """By who made them, the timeouts of all groups that this rank is in."""
    meet(Place.of(os.environ, rank, RANKS), torch.device("cpu"), SECONDS, lambda: False)
    levels = hierarchical.Levels(mesh(4, 1), (2, 2))
    servers = server.Servers(nn.Linear(4, 4), OptimizerConfig(), steps=0, staleness=0)
    groups = {
        "all": [dist.group.WORLD],
        "2 x 2": mesh(2, 2).get_all_groups(),
        "2 x 1 x 2": mesh(2, 1, 2).get_all_groups(),
        "levels": [*levels._inside, levels._across],
        "servers": [servers._push, servers._fetch],
        "saves": [Agreement(rank, RANKS).group],
    }
    return {name: [timeouts.of(group).total_seconds() for group in some] for name, some in groups.items()}, (
        servers.shard._patience_seconds
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    ended = run(made, RANKS, tmp_path_factory.mktemp("gang") / "ranks")
    assert [end.code for end in ended] == [0] * RANKS, "\n".join(end.output for end in ended)
    return [end.result for end in ended]


@pytest.mark.parametrize(
    ("name", "groups"), [("all", 1), ("2 x 2", 2), ("2 x 1 x 2", 3), ("levels", 2), ("servers", 2)]
)
def test_every_group_times_out_like_that_of_all_ranks(found, name, groups):
    assert [of[name] for of, _ in found] == [[SECONDS] * groups] * RANKS


def test_saves_have_a_patience_of_their_own(found):
    assert [of["saves"] for of, _ in found] == [[PATIENCE.total_seconds()]] * RANKS


def test_a_server_says_who_is_late_before_a_receive_times_out(found):
    assert all(0.0 < patience < SECONDS for _, patience in found)
