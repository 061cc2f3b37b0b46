"""A script of one's own: what its session says of it, and that what cannot be is refused before any rank waits."""

import torch
from support.processes import plan_file, run
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis
from trainyard_trainer import session
from trainyard_trainer.report import Failed, Phase, PhaseChanged


def scripted(script, tmp_path, **keywords):
    """The ends of the ranks of a script."""

    def work(rank):
        try:
            script()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

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
