"""Checkpoints in an object store, over the S3 protocol and a real server: as on a volume, whatever the network does."""

import hashlib
import json
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

import pytest
from support.killpoints import TRAINING
from support.objects import environment, server, through, trials
from support.processes import TINY, plan_file, run, start
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard_trainer.checkpoint.bucket import Bucket, last_attempt
from trainyard_trainer.checkpoint.objects import PART_BYTES, Objects, Url
from trainyard_trainer.checkpoint.record import CommitRecord
from trainyard_trainer.checkpoint.store import Stored, Superseded, WrongFolder
from trainyard_trainer.history import Segments
from trainyard_trainer.report import CheckpointDurable, Failed, ResumedFrom, StepDone, Warned
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

SEED = 21
LIVES = 4


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with server(tmp_path_factory.mktemp("s3") / "server") as running:
        os.environ.update(running.environment)  # of this process, for what it looks at itself
        yield running


@pytest.fixture
def url(s3, request):
    """A place of the test's own."""
    return Url(f"s3://{s3.folder.name}/{abs(hash(request.node.name)):x}")


def there(s3, url):
    """Where the server keeps what is below a URL."""
    return s3.folder / url.name


def train(tmp_path, name, url, environment, *, ranks=2, work=None, steps=6, **plan):
    trainer = {**TINY, "steps": steps}
    variables = plan_file(tmp_path / f"{name}.json", url, ranks=ranks, trainer=trainer, **plan)
    variables |= {**environment, env.STOP_FILE: str(tmp_path / f"{name}.stop")}
    return start(work or (lambda rank: main([])), ranks, tmp_path / name, dict.fromkeys(range(ranks), variables))


def of(reports, kind):
    return [report for report in reports if isinstance(report, kind)]


def losses(folder: Path):
    """By step; of a volume's file, or of a bucket's segments."""
    rows = [path.read_text().splitlines() for path in sorted(folder.rglob("*.jsonl"))]
    lines = [json.loads(line) for row in rows for line in row]
    return {line["step"]: line["loss"] for line in sorted(lines, key=lambda line: line["attempt"])}


def dies_after(step):
    """The trainer, which waits for each save; it is killed once the state after `step` is durable."""

    def work(rank):
        save = Session.save

        def save_and_die(self, *arguments, wait=False):
            save(self, *arguments, wait=True)
            if self.steps_done == step:
                os.kill(os.getpid(), signal.SIGKILL)

        Session.save = save_and_die
        return main([])

    return work


def test_a_training_that_was_killed_goes_on_from_the_bucket_bit_for_bit(tmp_path, s3, url):
    train(tmp_path, "whole", tmp_path / "volume", {}, steps=8).wait()
    train(tmp_path, "first", url, s3.environment, steps=8, every_steps=2, keep=2, work=dies_after(6)).wait()
    known = {"attempt": 2, "history": [(1, -1)], "keep": 2}
    (first, second) = train(tmp_path, "second", url, s3.environment, steps=8, **known).wait()
    assert (first.code, second.code) == (Exit.DONE, Exit.DONE), first.output
    assert [(r.step, r.attempt) for r in of(first.reports, ResumedFrom)] == [(6, 1)]
    assert of(first.reports, Warned) == []
    (durable,) = of(first.reports, CheckpointDurable)
    assert durable.path.startswith(f"{url}/attempt-0002/step-00000008.attempt-0002.")
    assert losses(there(s3, url)) == losses(tmp_path / "volume")
    left = sorted(path.parent.name.rpartition(".")[0] for path in there(s3, url).rglob("commit.json"))
    assert left == ["step-00000006.attempt-0001", "step-00000008.attempt-0002"], "two are kept, and nothing else"
    assert len(list(there(s3, url).glob("attempt-*/*"))) == 2


def flip(url, path):
    """Put an object again with one bit changed: what the store itself says of its bytes is true."""
    objects = Objects(url)
    data = bytearray(objects.get(path))
    data[len(data) // 2] ^= 1
    objects.put(path, bytes(data))


def test_what_is_damaged_in_the_bucket_is_passed_over_aloud(tmp_path, s3, url):
    train(tmp_path, "first", url, s3.environment, ranks=1, every_steps=2, work=dies_after(None)).wait()
    found = {path.name.rpartition(".")[0]: path.name for path in there(s3, url).glob("attempt-0001/*")}
    flip(url, url / "attempt-0001" / found["step-00000006.attempt-0001"] / "__0_0.distcp")
    flip(url, url / "attempt-0001" / found["step-00000004.attempt-0001"] / "commit.json")
    known = {"attempt": 2, "history": [(1, 6)]}
    (ended,) = train(tmp_path, "second", url, s3.environment, ranks=1, **known).wait()
    assert ended.code == Exit.DONE, ended.output
    assert [r.step for r in of(ended.reports, ResumedFrom)] == [2]
    warned = {r.reason: r.message for r in of(ended.reports, Warned)}
    assert warned["CheckpointUnverified"].startswith(f"{url}/attempt-0001/step-00000006.attempt-0001.")
    assert "__0_0.distcp: its hash is not that of what was written" in warned["CheckpointUnverified"]
    assert "commit.json: its hash is not that of what was written" in warned["CheckpointUnreadable"]


def test_cut_uploads_errors_and_lost_answers_cost_no_checkpoint(tmp_path, s3, url):
    """Each kind of request fails now and then, each entry of the log is put without an answer, and all is saved all the same."""
    seen = set()

    def fault(number, method, path):
        key = (method, path.split("?")[0])
        if method == "PUT" and key not in seen:
            seen.add(key)
            if "/log/" in path:
                return "lost"
            return "cut" if ".distcp" in path else "500"
        return "500" if number % 9 == 0 else ""

    with through(s3, fault) as port:
        work = dies_after(None)
        ended = train(tmp_path, "gang", url, environment(port), every_steps=2, keep=2, work=work).wait()
    assert [end.code for end in ended] == [Exit.DONE] * 2, ended[0].output
    assert [r.reason for r in of(ended[0].reports, Warned) if r.reason != "SaveLate"] == []
    commits = sorted(path.parent.name.rpartition(".")[0] for path in there(s3, url).rglob("commit.json"))
    assert commits[-1] == "step-00000006.attempt-0001"
    assert len(commits) == 2
    assert not any(there(s3, url).parent.glob(".sgwtmp/multipart/*/*")), "no upload is left half done"


def test_a_store_that_fails_for_a_while_is_told_and_the_training_goes_on(tmp_path, s3, url):
    def fault(number, method, path):
        return "500" if (tmp_path / "down").exists() else ""

    with through(s3, fault) as port:
        gang = train(tmp_path, "gang", url, environment(port), steps=100_000, every_steps=5, keep=2)
        gang.until(lambda: bool(of(gang.reports(0), CheckpointDurable)))
        (tmp_path / "down").touch()
        gang.until(lambda: any(r.reason == "SaveFailed" for r in of(gang.reports(0), Warned)))
        (tmp_path / "down").unlink()
        reached = of(gang.reports(0), StepDone)[-1].step
        gang.until(lambda: any(r.step > reached for r in of(gang.reports(0), CheckpointDurable)))
        (tmp_path / "gang.stop").touch()
        ended = gang.wait()
    assert [end.code for end in ended] == [Exit.YIELDED] * 2, ended[0].output
    (failed, *_) = (r.message for r in of(ended[0].reports, Warned) if r.reason == "SaveFailed")
    assert str(url) in failed


def test_what_only_the_user_can_change_is_not_tried_again(tmp_path, s3, url):
    refused = {**s3.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    (ended,) = train(tmp_path, "refused", url, refused, ranks=1).wait()
    assert ended.code == Exit.CONFIGURATION
    (report,) = of(ended.reports, Failed)
    assert report.message.startswith(f"spec.checkpoint.url: {url}/log: ")
    assert "give the pods credentials that may list, read, write and delete there" in report.message
    (ended,) = train(tmp_path, "nowhere", "s3://nowhere-at-all/job", s3.environment, ranks=1).wait()
    assert ended.code == Exit.CONFIGURATION
    (report,) = of(ended.reports, Failed)
    assert report.message.startswith("spec.checkpoint.url: s3://nowhere-at-all/job: ")
    assert "make the bucket, or name one that is there" in report.message


def test_nothing_wrong_is_loaded_after_death_at_any_request(tmp_path, s3, url):
    """As for files (test_checkpoint_faults.py): two attempts, killed at a drawn operation on objects."""
    lives = list(trials(LIVES, SEED, url, tmp_path))
    print(f"seed {SEED}: {[(life.point, life.durable, life.loaded) for life in lives]}")
    assert [life for life in lives if life.wrong] == []
    assert len({life.loaded for life in lives}) > 1, "no variety in the draw"


def test_a_script_without_an_operator_counts_its_attempts_by_the_log_and_exports(tmp_path, s3, url):
    from trainyard_trainer.export import NothingToExport, export, newest

    def work(rank):
        os.environ.update(s3.environment)
        config = tmp_path / "config.json"
        config.write_text(json.dumps(TINY))
        return [main(["--config", str(config), "--checkpoints", str(url)]), last_attempt(url)]

    with pytest.raises(NothingToExport, match="holds no committed checkpoint"):
        newest(url)
    for attempt in (1, 2):
        (ended,) = run(work, 1, tmp_path / str(attempt))
        assert ended.result == [Exit.DONE, attempt], ended.output
    stored = newest(url)
    assert (stored.record.attempt, stored.record.step) == (2, 6)
    (weights,) = export(stored, tmp_path / "exported")
    assert weights.stat().st_size > 10_000


# Objects and the log, without a training


def test_the_losses_of_a_history_are_read_until_there_are_enough(s3, url):
    """A segment for each step, of which every other has no number for a loss; an older attempt had done steps 28 to 40."""
    for attempt, first, last in ((1, 1, 40), (2, 28, 31)):
        segments = Segments(url, attempt, first - 1)
        for step in range(first, last + 1):
            segments.add(step, "aa", step / attempt if step % 2 else float("nan"))
            segments.sync()
    resumed = Segments(url, 3, 31)
    assert resumed.missing == 0
    assert resumed.losses(12) == [9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29 / 2, 31 / 2]
    assert resumed.losses(100)[:2] == [1, 3]


def test_a_large_file_goes_in_parts_and_is_there_whole_or_not_at_all(s3, url):
    """The first try of each part is cut."""
    cut = set()

    def fault(number, method, path):
        if "partNumber" in path and path not in cut:
            cut.add(path)
            return "cut"
        return ""

    data = Random(0).randbytes(PART_BYTES * 2 + 5)
    with through(s3, fault) as port:
        work = partial(_write_and_read, environment(port), url, data)
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            sizes, digest = pool.submit(work).result()
    assert sizes == {"whole": len(data)}
    assert digest == hashlib.sha256(data).hexdigest()
    assert not any(there(s3, url).parent.glob(".sgwtmp/multipart/*/*")), "what was given up left no parts"


def _write_and_read(variables, url, data):
    os.environ.update(variables)
    objects = Objects(url)
    for name in ("whole", "given up"):
        stream = objects.create(url / name)
        for begin in range(0, len(data), 2**20):
            stream.write(data[begin : begin + 2**20])
        if name == "whole":
            objects.sync(stream)
        stream.close()
    with objects.read(url / "whole") as reading:
        return objects.sizes(url), hashlib.file_digest(reading, "sha256").hexdigest()


def record(attempt, step):
    return CommitRecord(attempt, step, (), 1, (), "job", "", TRAINING, 0.0)


def saved(bucket, step):
    path = bucket.begin(step)
    return bucket.commit(path, record(bucket.attempt, step))


def claimed(url, attempt, job="job"):
    bucket = Bucket(Objects(url), attempt)
    bucket.claim(job)
    return bucket


def steps(url):
    """Of the commits that an administrator's look finds."""
    found = claimed(url, 99).find()
    assert found.unreadable == ()
    return [(stored.record.attempt, stored.record.step) for stored in found.commits]


def test_an_older_attempt_can_neither_save_nor_delete_what_a_newer_one_knows(s3, url):
    old = claimed(url, 1)
    (first, second) = (saved(old, step) for step in (1, 2))
    under_way = old.begin(3)
    new = claimed(url, 2)
    taken = [new.inherit(stored) for stored in new.find().commits]
    assert taken == [first, second]
    with pytest.raises(Superseded, match=r"attempt 2 has begun in s3://.*; what attempt 1 saves would not count"):
        old.commit(under_way, record(1, 3))
    with pytest.raises(Superseded):
        old.delete(first.path)
    with pytest.raises(Superseded):
        old.begin(4)
    saved(new, 5)
    new.abandon(())
    assert steps(url) == [(1, 1), (1, 2), (2, 5)]


def test_an_attempt_frozen_while_it_deletes_takes_nothing_from_the_next_one(s3, url, monkeypatch):
    """It has said what is to go; the next attempt begins; it thaws and deletes."""
    old = claimed(url, 1)
    (first, *_) = [saved(old, step) for step in (1, 2)]
    frozen = []
    monkeypatch.setattr(Objects, "remove", lambda self, path: frozen.append(path))
    old.delete(first.path)
    monkeypatch.undo()
    new = claimed(url, 2)
    assert [stored.record.step for stored in new.find().commits] == [2]
    for path in frozen:
        old.objects.remove(path)
    assert steps(url) == [(1, 2)]


def test_of_two_gangs_of_one_attempt_the_later_saves_and_the_earlier_is_told(s3, url):
    first = claimed(url, 1)
    saved(first, 1)
    path = first.begin(2)
    second = claimed(url, 1)
    with pytest.raises(Superseded, match=r"has claimed attempt 1 in s3://.*; give each gang a URL of its own"):
        first.commit(path, record(1, 2))
    saved(second, 2)
    assert steps(url) == [(1, 1), (1, 2)]


def test_what_lies_there_of_another_job_is_refused_and_stays(s3, url):
    saved(claimed(url, 3, "earlier"), 1)
    with pytest.raises(WrongFolder, match=r"holds checkpoints of another job \(earlier; this is job\)"):
        claimed(url, 4)
    assert list(there(s3, url).rglob("commit.json"))


def test_a_store_that_knows_no_conditions_is_refused_before_anything_is_written(s3, url, monkeypatch):
    monkeypatch.setattr(Objects, "put_new", Objects.put)
    with pytest.raises(WrongFolder, match=r"If-None-Match.*use a store that knows conditional puts, or a volume"):
        claimed(url, 1)
    assert [path.name for path in there(s3, url).iterdir()] == ["probe"]


def test_a_step_is_committed_once_and_never_written_over(s3, url):
    bucket = claimed(url, 1)
    assert isinstance(saved(bucket, 1), Stored)
    with pytest.raises(FileExistsError, match="step 1 of attempt 1 exists"):
        bucket.begin(1)


def test_an_entry_whose_answer_never_came_is_known_for_ones_own(s3, url, monkeypatch):
    """The put is done, the client says that it failed; and once more, where the next look fails as well."""
    bucket = claimed(url, 1)
    put_new, get = Objects.put_new, Objects.get

    def lost(self, path, data):
        put_new(self, path, data)
        raise OSError(5, "the connection was closed", str(path))

    monkeypatch.setattr(Objects, "put_new", lost)
    one = saved(bucket, 1)
    assert isinstance(one, Stored)

    def blind(self, path):
        if "/log/" in str(path) and blinded:
            blinded.pop()
            raise OSError(5, "the connection was closed", str(path))
        return get(self, path)

    path, blinded = bucket.begin(2), [True]
    monkeypatch.setattr(Objects, "get", blind)
    with pytest.raises(OSError, match="the connection was closed"):
        bucket.commit(path, record(1, 2))
    monkeypatch.undo()
    bucket.discard(path)
    assert steps(url) == [(1, 1)], "what was told as failed is gone"
