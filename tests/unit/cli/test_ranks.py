"""Which ranks lie where, and names as lists of hosts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_cluster, a_node, a_tree, in_rank_order
from trainyard.cli.ranks import MOST_LINES, folded, ranks_table


def unfolded(text: str) -> list[str]:
    found = []
    for part in re.findall(r"[^,\[]*(?:\[[^\]]*\])?", text):
        if not part:
            continue
        prefix, bracket, inside = part.partition("[")
        for item in inside.rstrip("]").split(",") if bracket else [""]:
            first, _, last = item.partition("-")
            numbers = [first] if not last else [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
            found += [prefix + number for number in numbers]
    return found


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a1", "a2", "a3", "a7"], "a[1-3,7]"),
        (["n8", "n9", "n10", "n11"], "n[8-11]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n099", "n100"], "n[099-100]"),
        (["n3", "n2", "n1"], "n[3,2,1]"),
        (["r1-n1", "r1-n2", "r2-n1"], "r1-n[1-2],r2-n1"),
        (["alpha", "beta"], "alpha,beta"),
        (["alone7"], "alone7"),
        ([], ""),
    ],
)
def test_names_that_count_on_are_folded_in_their_order(names: list[str], text: str) -> None:
    assert folded(names) == text


@given(
    st.lists(
        st.builds("{}{}".format, st.sampled_from(["a", "b-", "c1-"]), st.sampled_from(["1", "2", "3", "9", "10", "01"]))
    )
)
def test_a_folded_list_is_the_list(names: list[str]) -> None:
    assert unfolded(folded(names)) == names


def test_runs_of_ranks_stand_with_their_domain() -> None:
    nodes = a_cluster()
    gang = in_rank_order(a_tree(nodes), ["a1-0", "a1-1", "a2-1", "b1-0"])
    assert list(ranks_table(a_tree(nodes), gang)) == [
        "RANKS  LEAF      NODES",
        "0-1    a/leaf-1  a1-[0-1]",
        "2      a/leaf-2  a2-1",
        "3      b/leaf-1  b1-0",
    ]


def test_a_gang_over_many_domains_is_shown_by_a_broader_level() -> None:
    nodes = {n: a_node(n, spine=f"s{i // 50}", leaf=f"l{i}") for i, n in enumerate(f"n{i}" for i in range(100))}
    lines = list(ranks_table(a_tree(nodes), list(nodes)))
    assert lines[0].startswith("RANKS  SPINE")
    assert lines[1:] == ["0-49   s0     n[0-49]", "50-99  s1     n[50-99]"]


def test_nodes_without_labels_are_in_the_cluster_alone() -> None:
    nodes = {n: a_node(n) for n in (f"n{i}" for i in range(2 * MOST_LINES))}
    lines = list(ranks_table(a_tree(nodes), list(nodes)))
    assert [line.split() for line in lines] == [["RANKS", "CLUSTER", "NODES"], ["0-47", "-", "n[0-47]"]]
    assert list(ranks_table(a_tree(nodes), ["gone"]))[1].split() == ["0", "-", "gone"]
    assert list(ranks_table(a_tree(nodes), [])) == []
