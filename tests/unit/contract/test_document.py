"""docs/contract.md is what the code does: its examples are read by the code, its tables compared with it."""

import re
from pathlib import Path

import pytest
from trainyard.contract import env, requests
from trainyard.contract.exits import Exit
from trainyard.contract.plan import decode, digest
from trainyard.contract.status import WorkerPhase, decode_last_words, decode_status, encode_last_words

PAGE = (Path(__file__).parents[3] / "docs" / "contract.md").read_text()


def block(kind):
    return re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL).group(1)


def test_the_worked_signature_is_the_one_that_is_sent():
    example = {}
    exec(block("python"), example)
    stop = requests.decode_stop(example["body"])
    key = requests.job_key(b"operator-key", decode(block("json plan")).uid)
    uid = example["headers"][requests.HEADER_POD]
    assert example["headers"] == requests.sign(
        key, "POST", requests.PATH_STOP, requests.encode_stop(stop), uid, 1800000030.0
    )
    assert (
        requests.refusal(key, "POST", requests.PATH_STOP, example["body"], example["headers"], uid, 1800000000.0)
        is None
    )


def test_the_example_plan_says_what_the_page_says():
    plan = decode(block("json plan"))
    assert f"pod `{plan.pod(0)}`" in PAGE
    assert f"`{plan.master_address}:{plan.rendezvous_port}`" in PAGE


def test_the_example_status_and_last_words_are_of_that_plan():
    plan, status, words = (
        decode(block("json plan")),
        decode_status(block("json status")),
        decode_last_words(block("json last-words")),
    )
    assert (status.attempt, status.plan_digest, status.node_rank) == (plan.attempt, digest(plan), 0)
    assert decode_last_words(encode_last_words(words)) == words
    assert f"`phase` is one of {', '.join(WorkerPhase)}" in PAGE


def test_every_exit_code_is_in_the_table():
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \|", PAGE, re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == [(code.value, code.name) for code in Exit]


@pytest.mark.parametrize("name", sorted(value for key, value in vars(env).items() if key.isupper()))
def test_every_variable_is_described(name):
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize(
    "path", [requests.PATH_STATUS, requests.PATH_STOP, requests.PATH_CHECKPOINT, requests.PATH_PLAN]
)
def test_every_path_is_described(path):
    assert f"{path}` |" in PAGE
