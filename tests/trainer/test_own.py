"""A script of one's own: what its session says of it, and that what cannot be is refused before any rank waits."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from support.processes import plan_file, run, start
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis
from trainyard_trainer import session
from trainyard_trainer.report import Failed, Phase, PhaseChanged, StepDone


def scripted(script, tmp_path, **keywords):
    """The ends of the ranks of a script; what it returns is their result."""

    def work(rank):
        try:
            said = script()
        except SystemExit as end:
            return int(end.code or 0)
        return said or 0

    return run(work, keywords.pop("ranks"), tmp_path / "gang", **keywords)


def evaluates_and_saves_before_its_first_step():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.load(model, optimizer)
    for step in (0, 1):
        if step:
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            session.report(step, loss)
        with session.evaluating():
            pass
        session.save(wait=True)
    session.end()


def test_until_its_first_step_is_done_a_script_warms_up_whatever_it_does_before(tmp_path):
    given = plan_file(tmp_path / "plan.json", tmp_path / "checkpoints", ranks=1)
    (ended,) = scripted(evaluates_and_saves_before_its_first_step, tmp_path, ranks=1, environments={0: given})
    assert ended.code == Exit.DONE, ended.output
    said = [report.phase for report in ended.reports if isinstance(report, PhaseChanged)]
    before, after = [Phase.INIT, Phase.LOAD, Phase.WARM_UP], Phase.TRAIN
    first = [Phase.EVAL, Phase.WARM_UP, Phase.SAVE, Phase.WARM_UP]
    assert said[: said.index(after)] == [*before, *first]
    assert said[said.index(after) :] == [after, Phase.EVAL, after, Phase.SAVE, after, Phase.SAVE, Phase.DONE]


def test_a_mesh_that_cannot_be_is_refused_before_the_other_ranks_have_come(tmp_path):
    given = plan_file(tmp_path / "plan.json", tmp_path / "checkpoints", ranks=2, mesh=[Axis("expert", 2)])
    (ended,) = scripted(session.join, tmp_path, ranks=2, environments={0: given}, only=[0])
    assert ended.code == Exit.CONFIGURATION, ended.output
    (failed,) = (report for report in ended.reports if isinstance(report, Failed))
    assert failed.message.startswith("mesh.expert: ")


class Bodied(torch.nn.Module):
    """A head that has no part in the loss until it is called for, and a module that keeps more than tensors."""

    def __init__(self, head=True):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.counts = Counts()
        self.called_for = head

    def forward(self, x):
        x = self.counts(self.body(x))
        return self.head(x) if self.called_for else x


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.sizes = 0, torch.zeros(0)

    def forward(self, x):
        self.seen += 1
        self.sizes = torch.cat((self.sizes, torch.tensor([float(len(x))])))
        return x

    def get_extra_state(self):
        return {"seen": self.seen, "sizes": self.sizes}

    def set_extra_state(self, state):
        self.seen, self.sizes = state["seen"], state["sizes"]


def trains(model, steps, *, head_from=0, wrap=lambda model: model, optimizer=torch.optim.AdamW, **others):
    """A script's whole life up to `steps`; the answer is all that it holds at the end."""
    session.join()
    torch.manual_seed(0)
    own = model()
    wrapped = wrap(own)
    optimizer = optimizer(wrapped.parameters(), lr=0.1)
    step = session.load(wrapped, optimizer, **others)
    while step < steps:
        session.seed(step)
        own.called_for = step >= head_from
        loss = wrapped(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        session.report(step, loss)
    session.end()
    made = [{key: float(value.sum()) for key, value in optimizer.state[p].items()} for p in own.parameters()]
    return [p.tolist() for p in own.parameters()], made, own.counts.seen, own.counts.sizes.tolist()


def lives(tmp_path, name, script, *, attempt=1, **plan):
    """One attempt of a script on one rank."""
    folder = tmp_path / f"{name}-{attempt}"
    folder.mkdir()
    history = [(before, -1) for before in range(1, attempt)]
    given = plan_file(
        folder / "plan.json", tmp_path / f"{name}-root", ranks=1, attempt=attempt, history=history, **plan
    )
    (ended,) = scripted(script, folder, ranks=1, environments={0: given})
    return ended


def spread(model):
    return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


@pytest.mark.parametrize("wrap", [lambda model: model, spread], ids=["plain", "DDP"])
def test_parameters_without_gradients_and_extra_state_go_on_as_without_a_break(tmp_path, wrap):
    whole = lives(tmp_path, "whole", lambda: trains(Bodied, 6, head_from=4, wrap=wrap))
    assert whole.code == Exit.DONE, whole.output
    first = lives(tmp_path, "broken", lambda: trains(Bodied, 3, head_from=4, wrap=wrap))
    assert first.code == Exit.DONE, first.output
    assert first.result[1][2:] == [{}, {}], "the head had no gradient"
    assert first.result[2] == 3
    second = lives(tmp_path, "broken", lambda: trains(Bodied, 6, head_from=4, wrap=wrap), attempt=2)
    assert second.code == Exit.DONE, second.output
    assert second.result == whole.result


class Renamed(Bodied):
    """As many parameters, of the same shapes."""

    def __init__(self):
        super().__init__()
        self.feet = self.head
        del self.head

    def forward(self, x):
        return self.feet(self.counts(self.body(x)))


class Reshaped(Bodied):
    """As many parameters, of other shapes."""

    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2, bias=False)
        self.more = torch.nn.Parameter(torch.zeros(4))


class Smaller(Bodied):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1, bias=False)


def refused(ended):
    """What a script that can never go on is told, once."""
    assert ended.code == Exit.CONFIGURATION, ended.output
    (failed,) = (report for report in ended.reports if isinstance(report, Failed))
    assert failed.configuration
    return failed.message


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        (Smaller, torch.optim.AdamW, r"the model has 24 parameters, and that of the checkpoint of step 1 has 25;"),
        (
            Renamed,
            torch.optim.AdamW,
            r"step 1 .*: model\.feet\.weight is not there, and \[1, 4\] here \(and \d+ more\);",
        ),
        (Reshaped, torch.optim.AdamW, r"step 1 .*: model\.more is not there, and \[4\] here \(and \d+ more\);"),
        (Bodied, torch.optim.Adagrad, r"step 1 .*: optimizer\.body\.weight\.sum is not there, and \[4, 4\] here"),
    ],
)
def test_a_checkpoint_of_another_model_or_optimizer_is_refused_for_good(tmp_path, model, optimizer, message):
    assert lives(tmp_path, "job", lambda: trains(Bodied, 1)).code == Exit.DONE
    said = refused(lives(tmp_path, "job", lambda: trains(model, 2, optimizer=optimizer), attempt=2))
    assert said.startswith("session.load: ")
    assert re.search(message, said), said
    again = lives(tmp_path, "job", lambda: trains(Bodied, 2), attempt=3)
    assert again.code == Exit.DONE, "nothing was lost: " + again.output


class Odd:
    """A state that only running code could bring back."""

    def state_dict(self):
        return {"path": Odd()}

    def load_state_dict(self, state):
        raise AssertionError


def test_a_state_that_cannot_be_read_without_running_it_is_refused_before_the_first_step(tmp_path):
    ended = lives(tmp_path, "job", lambda: trains(Bodied, 1, odd=Odd()))
    assert "odd" in refused(ended)
    assert not [report for report in ended.reports if isinstance(report, StepDone)]


def without_a_plan(folder, steps, every=50):
    """A script as it runs under torchrun, or alone; where it began."""
    if folder is not None:
        session.join(folder, every=every)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = step = session.load(model, optimizer)
    while step < steps and not session.should_stop(step):
        loss = model(torch.ones(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        session.report(step, loss)
        if session.should_save(step):
            session.save()
    session.end()
    return [began]


def committed(folder):
    return sorted(json.loads(path.read_text())["step"] for path in folder.glob("*/*/commit.json"))


def test_without_a_plan_join_says_where_to_save_and_how_often_and_the_next_start_goes_on(tmp_path):
    folder = tmp_path / "checkpoints"
    (ended,) = run(lambda rank: without_a_plan(folder, 120), 1, tmp_path / "first")
    assert ended.result == [0], ended.output
    first, *_, last = committed(folder)
    assert (first, last) == (50, 120)  # that of step 100 may have waited for the one before
    (ended,) = run(lambda rank: without_a_plan(folder, 121), 1, tmp_path / "second")
    assert ended.result == [120], ended.output


def test_without_a_plan_the_environment_may_say_where_to_save_and_else_nothing_is_saved(tmp_path):
    folder = tmp_path / "checkpoints"
    said = {0: {"TRAINYARD_CHECKPOINTS": str(folder)}}
    for n, (given, began, steps) in enumerate(((said, 0, 3), (said, 3, 5), ({}, 0, 7))):
        (ended,) = run(lambda rank, steps=steps: without_a_plan(None, steps), 1, tmp_path / str(n), environments=given)
        assert ended.result == [began], ended.output
    assert committed(folder) == [3, 5]


def test_sigterm_under_torchrun_asks_to_leave_and_no_step_is_lost(tmp_path):
    """It passes the signal on to all ranks, and makes 1 of every exit code."""
    folder, script = tmp_path / "checkpoints", tmp_path / "script.py"
    body = inspect.getsource(without_a_plan)
    script.write_text(
        f"import sys, torch\nfrom trainyard_trainer import session\n{body}\nwithout_a_plan(sys.argv[1], 10**9)\n"
    )
    torchrun = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until = time.monotonic() + 120
        while not committed(folder) and torchrun.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        torchrun.send_signal(signal.SIGTERM)
        said, _ = torchrun.communicate(timeout=100)
    finally:
        torchrun.kill()
    assert torchrun.returncode == 1
    assert committed(folder)[0] >= 50, said
    last = committed(folder)[-1]
    ended = run(lambda rank: without_a_plan(folder, last + 5), 2, tmp_path / "again")
    assert [end.result for end in ended] == [[last], [last]], ended[0].output


def test_sigterm_to_a_script_alone_asks_it_to_leave(tmp_path):
    folder = tmp_path / "checkpoints"

    def work(rank):
        try:
            return without_a_plan(folder, 10**9)
        except SystemExit as end:
            return int(end.code or 0)

    gang = start(work, 1, tmp_path / "gang")
    gang.until(lambda: committed(folder))
    gang.kill(0, signal.SIGTERM)
    (ended,) = gang.wait()
    assert ended.code == Exit.YIELDED, ended.output
    last = max(report.step for report in ended.reports if isinstance(report, StepDone))
    assert committed(folder)[-1] == last
