"""A step whose numbers went astray is given up by all ranks alike, as configured, and its cause has a name."""

import json
import math
import re
from random import Random

import pytest
from support.processes import TINY, plan_file, run
from trainyard.api.trainer import DivergenceConfig
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis
from trainyard_trainer.diagnosis import Seen, tell, tell_losses
from trainyard_trainer.divergence import Fault, Watch
from trainyard_trainer.history import History
from trainyard_trainer.model import transformer
from trainyard_trainer.parallel.spread import Spread
from trainyard_trainer.report import Failed, StepDone, Warned
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

NAN = float("nan")


def watch(losses=(), **given):
    return Watch(DivergenceConfig.model_validate(given), losses)


def test_a_spike_is_above_so_many_medians_of_the_steps_before():
    seen = watch([2.0] * 8, onSpike="skip", spikeFactor=1.5)
    assert seen.look(9, 3.0, 1.0) is None
    assert seen.look(10, 3.01, 1.0) == Fault(
        10, "loss 3.01, and the median of the steps before is 2", "spec.trainer.divergence.onSpike", "skip", finite=True
    )
    assert watch([2.0] * 7, onSpike="skip").look(8, 100.0, 1.0) is None
    assert watch([2.0] * 8).look(9, 100.0, 1.0) is None


def test_what_was_not_finite_is_not_among_the_steps_before():
    seen = watch([NAN, 2.0] * 8, onSpike="stop", spikeWindow=8)
    fault = seen.look(17, 2.0, math.inf)
    assert (fault.what, fault.action, fault.finite) == ("loss 2, norm of the gradient inf", "stop", False)
    assert seen.look(18, 4.1, 1.0).action == "stop"


def test_who_resumes_after_any_step_takes_the_same_for_spikes(tmp_path):
    """Among the steps: losses that are no numbers, and some of those that are whose gradient was infinite."""
    draw = Random(7)
    done = [
        (NAN if draw.random() < 0.4 else draw.uniform(1.0, 3.0), math.inf if draw.random() < 0.2 else 1.0)
        for _ in range(60)
    ]
    given = {"onSpike": "skip", "onNonFinite": "skip", "spikeFactor": 1.2, "spikeWindow": 9}
    undisturbed, expected = watch(**given), []
    first = History(tmp_path, 1, 0)
    for step, (loss, norm) in enumerate(done, start=1):
        expected.append(undisturbed.look(step, loss, norm))
        first.add(step, "aa", loss)
    first.close()
    assert {fault.finite for fault in expected if fault is not None} == {True, False}
    for cut in range(59, -1, -1):
        history = History(tmp_path, 2, cut)
        resumed = watch(history.losses(9), **given)
        history.close()
        assert [resumed.look(n, *done[n - 1]) for n in range(cut + 1, 61)] == expected[cut:], cut


def test_the_cause_is_the_first_layer_of_the_first_stage_or_the_last_on_the_way_back():
    fine, late = Seen(1.0, 1.0), Seen(NAN, NAN, gives="blocks.1.attention.out")
    assert tell([(0, fine), (1, late), (0, Seen(NAN, NAN, gives="blocks.0.norm"))], False).startswith(
        "rank 2 began it: blocks.0.norm gave numbers that are not finite"
    )
    back = [(0, Seen(1.0, 1.0, receives="blocks.0.norm")), (1, Seen(1.0, 1.0, receives="out")), (1, fine)]
    assert tell(back, False) == "rank 1 began it: a gradient that is not finite came back to out"
    both = [(0, Seen(NAN, NAN, weight="norm.weight")), (0, Seen(NAN, NAN, weight="norm.weight", gives="norm"))]
    assert tell(both, False) == "rank 0 has a weight that is not finite: norm.weight, as on ranks 1"
    assert tell([(0, fine), (0, fine)], False).startswith("every layer gives finite numbers, and what they add up to")
    assert tell([(0, fine), (0, fine)], True).startswith("computed again everything is finite")


def test_a_spike_is_of_the_ranks_whose_own_loss_is_far_from_the_others():
    assert tell_losses([2.1, 2.2, 2.3, 9.1]) == "rank 3's own loss is 9.1, and the others' median 2.2"
    # The last stages of a pipeline alone have losses, the members of a tensor group the same ones.
    assert tell_losses([None, None, 9.0, 9.0, 2.0, 2.0, 2.2, 2.2]) == (
        "rank 2's own loss is 9, rank 3's own loss is 9, and the others' median 2.1"
    )
    assert tell_losses([5.0, 5.2, None, 6.0]) == "all ranks alike: their own losses are 5 (rank 0) to 6 (rank 3)"
    assert tell_losses([9.0] * 6 + [2.0] * 20).endswith("(2 more ranks likewise), and the others' median 2")
    assert tell_losses([None, 7.0]) == "there is one rank's loss alone"


def spikes(step):
    """On this rank, the loss is ten times what it should be in a step."""
    steps, loss, learn = [0], Spread._loss, Spread.learn

    def compute(self, *given):
        return loss(self, *given) * (10.0 if steps[0] == step else 1.0)

    def count(self, *given):
        steps[0] += 1
        return learn(self, *given)

    Spread._loss, Spread.learn = compute, count


def breaks(step, times):
    """On this rank, the feed-forward of the last layer gives infinities from a step on, so many times."""
    left, steps, last = [times], [0], []
    made, forward, learn = transformer.FeedForward.__init__, transformer.FeedForward.forward, Spread.learn

    def make(self, shape):
        made(self, shape)
        last[:] = [self]

    def compute(self, x):
        if steps[0] < step or not left[0] or self is not last[0]:
            return forward(self, x)
        left[0] -= 1
        return forward(self, x) * math.inf

    def count(self, *given):
        steps[0] += 1
        return learn(self, *given)

    transformer.FeedForward.__init__, transformer.FeedForward.forward, Spread.learn = make, compute, count


def saves_at_once():
    """Every save is whole before the next step, however slow the disk: none is put off."""
    save = Session.save
    Session.save = lambda *given, wait=False: save(*given, wait=True)


def attempt(folder, divergence, attempt=1, step=4, times=100, spike=0, code=Exit.DONE, ranks=2, at_once=False, **given):
    """Two ranks, of which the second one's last layer breaks in a step, or its loss spikes; or one that is whole."""
    folder.mkdir(exist_ok=True)
    trainer = {**TINY, "divergence": divergence, **given.pop("trainer", {})}
    environment = plan_file(
        folder / f"plan-{attempt}.json",
        folder / "run",
        trainer=trainer,
        ranks=ranks,
        mesh=given.pop("mesh", [Axis("shard", ranks)]),
        attempt=attempt,
        **given,
    )

    def work(rank):
        if at_once:
            saves_at_once()
        if rank == 1 and spike:
            spikes(spike)
        elif rank == 1 and step:
            breaks(step, times)
        return main([])

    ended = run(work, ranks, folder / f"gang-{attempt}", environments=dict.fromkeys(range(ranks), environment))
    assert [end.code for end in ended] == [code] * ranks, ended[0].output
    return ended


def warnings(ended):
    return [(report.reason, report.message) for report in ended[0].reports if isinstance(report, Warned)]


def losses(folder):
    return [
        float.fromhex(json.loads(line)["loss"]) for line in (folder / "run" / "history.jsonl").read_text().splitlines()
    ]


BROKEN = "step 4: loss nan, norm of the gradient nan; "
CAUSE = f"{BROKEN}rank 1 began it: blocks.1.feed_forward gave numbers that are not finite"
COMPUTED = 2
"""Times that the layer computes in a step: micro-batches of a rank."""


def test_training_stops_at_once_and_says_where_it_began(tmp_path):
    ended = attempt(tmp_path / "stop", {}, code=Exit.FAILURE)
    for end in ended:
        (failed,) = (report for report in end.reports if isinstance(report, Failed))
        assert failed.message == CAUSE
        assert not failed.configuration


def test_a_step_is_skipped_by_all_ranks_and_the_next_takes_the_next_samples(tmp_path):
    usual = attempt(tmp_path / "usual", {}, step=0)
    ended = attempt(tmp_path / "skip", {"onNonFinite": "skip"}, times=2 * COMPUTED)
    skipped = "the weights stay as they were (spec.trainer.divergence.onNonFinite)"
    assert warnings(ended) == [("StepSkipped", f"{CAUSE}; {skipped}")]
    found, expected = losses(tmp_path / "skip"), losses(tmp_path / "usual")
    assert found[:3] == expected[:3]
    assert math.isnan(found[3])
    assert found[4] != expected[4]
    assert all(map(math.isfinite, found[4:]))
    digests = [[report.digest for report in of[0].reports if isinstance(report, StepDone)] for of in (usual, ended)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("form", ["shard=2", "pipeline=2,shard=1", "shard=1,tensor=2"])
def test_a_spikes_cause_is_told_by_rank(tmp_path, form):
    mesh = [Axis(name, int(size)) for name, size in (axis.split("=") for axis in form.split(","))]
    ended = attempt(
        tmp_path / "spike", {"onSpike": "skip", "spikeWindow": 8}, mesh=mesh, spike=10, trainer={"steps": 11}
    )
    ((reason, message),) = warnings(ended)
    assert reason == "StepSkipped"
    cause = {
        "shard=2": r"rank 1's own loss is \d\d\.\d+, and the others' median \d\.\d+",
        "pipeline=2,shard=1": "there is one rank's loss alone",
        "shard=1,tensor=2": r"rank 1's own loss is \d\d\.\d+, and the others' median \d\.\d+",
    }[form]
    assert re.search(
        rf"^step 10: loss .+, and the median of the steps before is \d\.\d+; {cause}; the weights stay", message
    )


def test_what_does_not_come_again_is_blamed_on_the_machine(tmp_path):
    ended = attempt(tmp_path / "once", {"onNonFinite": "skip"}, times=COMPUTED)
    ((reason, message),) = warnings(ended)
    assert reason == "StepSkipped"
    assert message.startswith(f"{BROKEN}rank 1 had a loss of nan and has ")
    assert "computed again: its machine is to be suspected, not the training" in message


def test_a_roll_back_takes_the_weights_of_the_last_commit_and_goes_on(tmp_path):
    """As if the steps since had been skipped one by one."""
    ended = attempt(tmp_path / "back", {"onNonFinite": "rollback"}, times=2 * COMPUTED, every_steps=2)
    rolled = "the weights are those of step 2 again (spec.trainer.divergence.onNonFinite)"
    assert ("RolledBack", f"{CAUSE}; {rolled}") in warnings(ended)
    attempt(tmp_path / "alike", {"onNonFinite": "skip"}, step=3, times=4 * COMPUTED)
    found, other = losses(tmp_path / "back"), losses(tmp_path / "alike")
    assert found[4:] == other[4:]
    assert math.isfinite(found[2])
    assert math.isnan(other[2])
    ended = attempt(tmp_path / "none", {"onNonFinite": "rollback"}, code=Exit.FAILURE)
    assert f"{CAUSE}; there is no checkpoint to roll back to" in ended[0].output


def test_after_so_many_the_training_stops(tmp_path):
    ended = attempt(tmp_path / "many", {"onNonFinite": "skip", "most": 2}, code=Exit.FAILURE)
    assert [reason for reason, _ in warnings(ended)] == ["StepSkipped"] * 2
    assert "2 steps were given up before (spec.trainer.divergence.most)" in ended[0].output


def test_a_resumed_training_takes_the_same_for_spikes(tmp_path):
    """A factor that every other loss exceeds; the losses before are those of the history."""
    spikes = {"onSpike": "skip", "spikeFactor": 1.0001, "spikeWindow": 8, "most": 100}
    trainer = {"steps": 24, "optimizer": {"warmupSteps": 0, "learningRate": 1e-4, "finalFraction": 1.0}}
    whole = attempt(tmp_path / "whole", spikes, ranks=1, every_steps=14, trainer=trainer)
    attempt(tmp_path / "cut", spikes, ranks=1, every_steps=14, trainer={**trainer, "steps": 14})
    again = attempt(tmp_path / "cut", spikes, attempt=2, ranks=1, history=[(1, 14)], trainer=trainer)
    given_up = [message.split(":")[0] for reason, message in warnings(whole) if reason == "StepSkipped"]
    assert 2 < len(given_up) < 16
    later = [message.split(":")[0] for reason, message in warnings(again) if reason == "StepSkipped"]
    assert later == [step for step in given_up if int(step.split()[1]) > 14]
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_a_step_that_is_given_up_leaves_nothing_that_compression_owes(tmp_path):
    """A resume begins without; so who resumes after such a step goes on as who did not."""
    spikes = {"onSpike": "skip", "spikeFactor": 1.0001, "spikeWindow": 8, "most": 100}
    trainer = {
        "steps": 15,
        "optimizer": {"warmupSteps": 0, "learningRate": 1e-3, "finalFraction": 1.0},
        "parallel": {"compression": {"method": "topk"}},
    }
    mesh = [Axis("replicate", 2), Axis("shard", 2)]
    given = {"trainer": trainer, "ranks": 4, "mesh": mesh, "step": 0, "every_steps": 1, "keep": 100, "at_once": True}
    whole = attempt(tmp_path / "run", spikes, **given)
    last = next(int(message.split()[1].rstrip(":")) for reason, message in warnings(whole) if reason == "StepSkipped")
    expected = losses(tmp_path / "run")
    attempt(tmp_path / "run", spikes, attempt=2, history=[(1, last)], **given)
    assert 8 < last < 13
    assert losses(tmp_path / "run") == expected
