"""What a gang says of itself while it trains: who is slow, who is missing, what is expected of a save. With real ranks."""

import math
import os
import signal
import statistics
import time

import pytest
import torch
from support.processes import TINY, plan_file, run, start
from trainyard.api.trainer import TrainerConfig
from trainyard.contract import env
from trainyard.contract.plan import Axis
from trainyard_trainer import heartbeat
from trainyard_trainer.launch.hang import furthest_behind
from trainyard_trainer.launch.progress import COMPARED_STEPS, Progress, durable_in, heard
from trainyard_trainer.model.transformer import Block
from trainyard_trainer.parallel.spread import Spread
from trainyard_trainer.report import Beat, Phase, Reporter, SaveExpected, StepDone
from trainyard_trainer.train import main
from trainyard_trainer.utilization import Utilization

SLOW = 2
"""The rank that computes slowly."""


def environment(tmp_path, ranks, name="plan", **plan):
    given = plan_file(tmp_path / f"{name}.json", tmp_path / "checkpoints", ranks=ranks, **plan)
    return {
        rank: {**given, env.STOP_FILE: str(tmp_path / f"stop-{rank}"), "TORCH_FR_BUFFER_SIZE": "200"}
        for rank in range(ranks)
    }


def told(reports):
    progress = Progress()
    for report in reports:
        progress = heard(progress, report, attempt=1, now=0.0)
    return progress


def slowly(rank):
    """From the fourth step on, one rank does besides as much again four times over, however long that is on this machine."""
    own: list[float] = []
    says, learns = Reporter.step, Spread.learn

    def step(self, number, **said):
        own.append(said["step_seconds"] - said["waited_seconds"])
        says(self, number, **said)

    def learn(self, *arguments):
        if rank == SLOW and len(own) >= 4:
            time.sleep(4 * statistics.median(own[1:4]))
        return learns(self, *arguments)

    Reporter.step, Spread.learn = step, learn
    return main([])


@pytest.mark.parametrize("axes", [[Axis("replicate", 3)], [Axis("shard", 2), Axis("tensor", 2)]])
def test_who_computes_slowly_is_told_from_who_waits(tmp_path, axes):
    ranks = math.prod(axis.size for axis in axes)
    given = environment(tmp_path, ranks, trainer={**TINY, "steps": COMPARED_STEPS + 4}, mesh=axes)
    ended = run(slowly, ranks, tmp_path / "gang", environments=given)
    assert [end.code for end in ended] == [0] * ranks, ended[0].output
    known = [told(end.reports) for end in ended]
    own = [progress.own_seconds for progress in known]
    assert own[SLOW] > 1.25 * statistics.median(own[:SLOW] + own[SLOW + 1 :]), own
    assert min(known, key=lambda progress: progress.waited_seconds) is known[SLOW]
    assert all(0 < progress.waited_seconds < progress.step_seconds_sum for progress in known)


@pytest.mark.parametrize(
    ("axes", "others_in"), [([Axis("shard", 3)], " of default_pg"), ([Axis("pipeline", 2)], "a send or receive")]
)
def test_a_rank_that_does_not_enter_a_collective_is_named_by_those_that_wait_in_it(tmp_path, axes, others_in):
    ranks = axes[0].size

    def stands_still(rank):
        heartbeat.BEAT_SECONDS = 0.1
        if rank == 1:
            computes, steps = Block.forward, []

            def forward(self, *arguments):
                steps.append(1)
                if len(steps) > 12:
                    (tmp_path / "stands").touch()
                    time.sleep(1000)  # holds no lock: the heartbeat goes on
                return computes(self, *arguments)

            Block.forward = forward
        return main([])

    given = environment(tmp_path, ranks, trainer={**TINY, "steps": 100_000}, mesh=axes)
    gang = start(stands_still, ranks, tmp_path / "gang", given)

    def beats(rank):
        return [report for report in gang.reports(rank) if isinstance(report, Beat)]

    gang.until((tmp_path / "stands").exists)
    before = [len(beats(rank)) for rank in range(ranks)]
    gang.until(lambda: all(len(beats(rank)) > before[rank] + 3 for rank in range(ranks)))
    known = [(rank, told(gang.reports(rank))) for rank in range(ranks)]
    found = furthest_behind(known, 60.0, now=1000.0, awake_since=0.0)
    assert found.rank == 1, known
    assert found.others == tuple(rank for rank in range(ranks) if rank != 1)
    assert found.others_in.endswith(others_in)
    gang.end()


def test_a_frozen_rank_is_told_from_those_that_wait_for_it(tmp_path):
    def trains(rank):
        heartbeat.BEAT_SECONDS = 0.1
        return main([])

    gang = start(trains, 2, tmp_path / "gang", environment(tmp_path, 2, trainer={**TINY, "steps": 100_000}))
    gang.until(lambda: any(isinstance(report, StepDone) for report in gang.reports(1)))
    gang.kill(1, signal.SIGSTOP)
    gang.until(lambda: told(gang.reports(0)).waits_in)
    beats = len(gang.reports(0))
    gang.until(lambda: len(gang.reports(0)) > beats + 3)
    last = {rank: max(report.at for report in gang.reports(rank)) for rank in range(2)}
    assert last[0] > last[1], "whoever waits still says that it is there"
    gang.kill(1, signal.SIGCONT)
    gang.end()


def test_before_the_first_save_it_is_known_how_long_one_will_take_and_on_what_grounds(tmp_path):
    first = run(
        lambda rank: main([]),
        2,
        tmp_path / "first",
        environments=environment(tmp_path, 2, "first", trainer={**TINY, "steps": 2}),
    )
    assert [end.code for end in first] == [0, 0], first[0].output
    again = environment(tmp_path, 2, "again", trainer={**TINY, "steps": 3}, attempt=2, history=[(1, 2)], resume=(1, 2))
    second = run(lambda rank: main([]), 2, tmp_path / "second", environments=again)
    assert [end.code for end in second] == [0, 0], second[0].output
    for ended, grounds in ((first, "200 MB/s, assumed"), (second, "as fast as it was loaded")):
        reports = ended[0].reports
        (expected,) = [report for report in reports if isinstance(report, SaveExpected)]
        assert grounds in expected.basis
        until_saved = [report for report in reports if report.at <= expected.at]
        assert durable_in([told(until_saved)], expected.at).seconds == expected.seconds > 0


def test_the_formula_of_utilization_and_that_no_peak_is_invented():
    config = TrainerConfig.model_validate({"model": {"preset": "7b"}, "data": {"sequenceLength": 4096}})
    known = Utilization(Utilization.of(config, torch.device("cpu"), 8).flops_per_token, 8 * 989e12)
    shape = config.model.shape
    multiplied = known.flops_per_token - 12 * shape.layers * shape.width * 4096
    assert multiplied / 6 == pytest.approx(7.0e9, rel=0.05), "6 N"
    assert known.mfu(tokens=100_000, seconds=1.0) == pytest.approx(100_000 * known.flops_per_token / (8 * 989e12))
    assert Utilization.of(config, torch.device("cpu"), 8).mfu(100_000, 1.0) is None


def test_phases_are_said_in_the_order_in_which_they_are_gone_through(tmp_path):
    given = environment(tmp_path, 1, trainer={**TINY, "steps": 3}, every_steps=2)
    (ended,) = run(lambda rank: main([]), 1, tmp_path / "gang", environments=given)
    assert ended.code == 0, ended.output
    said = [report.phase for report in ended.reports if type(report).__name__ == "PhaseChanged"]
    assert said[:4] == [Phase.INIT, Phase.LOAD, Phase.WARM_UP, Phase.TRAIN]
    assert said[-1] == Phase.DONE
    assert os.environ.get("RANK") is None
