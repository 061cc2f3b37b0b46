"""Each rule on an example worked by hand."""

from collections.abc import Mapping

import pytest
from trainyard.topology.tree import Level, build
from trainyard.world.records import Node
from trainyard.world.supply import Supply, supply

from benchmarks.clusters import ALLOCATABLE
from benchmarks.rivals import kueue
from benchmarks.rivals.anywhere import Anywhere
from benchmarks.rivals.best_fit import BestFit
from benchmarks.rivals.kube_scheduler import LeastAllocated, enough
from benchmarks.rivals.native import RequiredLabel, placements
from benchmarks.rivals.rival import Rival

LEVELS = (Level("spine", "spine"), Level("leaf", "leaf"))


def room(leaves: Mapping[str, tuple[int, ...]], whole: int = 1) -> Supply:
    """A two-level cluster. leaves: by "spine/leaf", for each of its hosts how many members fit now. Hosts are named after
    their leaf: the second of s1/a is s1-a-1."""
    slots: dict[str, int] = {}
    nodes = []
    for path, free in leaves.items():
        spine, leaf = path.split("/")
        for number, fit in enumerate(free):
            name = f"{spine}-{leaf}-{number}"
            slots[name] = fit
            nodes.append(Node(name, name, {"spine": spine, "leaf": leaf}, ALLOCATABLE))
    tree = build(nodes, LEVELS)
    return supply(tree, [slots[n] for n in tree.index.names], [whole] * len(slots), [None] * len(slots))


def hosts(of: Supply, rival: Rival, members: int) -> list[str]:
    places = rival.place(of, members)
    assert places is not None
    return [of.index.names[position] for position in places]


def leaves_of(names: list[str]) -> list[str]:
    return [name.rsplit("-", 1)[0] for name in names]


def test_kueue_best_fit_takes_the_fullest_and_ends_with_the_tightest():
    """Hosts with 3, 3, 2 and 1 places, 7 pods: 3 + 3 leave one pod, and the host with 1 is the tightest for it."""
    leaf = room({"s/a": (3, 3, 2, 1)}, whole=3)
    assert hosts(leaf, kueue.best_fit(), 7) == ["s-a-0"] * 3 + ["s-a-1"] * 3 + ["s-a-3"]


def test_kueue_least_free_takes_the_emptiest_first():
    """The same: 1, 2, 3 and one of the last host, in the order of the names: host 0 has 3 of them, host 1 one."""
    leaf = room({"s/a": (3, 3, 2, 1)}, whole=3)
    assert hosts(leaf, kueue.least_free(), 7) == ["s-a-0"] * 3 + ["s-a-1"] + ["s-a-2"] * 2 + ["s-a-3"]


def test_kueue_prefers_the_tightest_single_leaf():
    """Leaves with 4, 3 and 2 free, 2 pods: the leaf with 2 holds them and no other is as tight, for either profile."""
    spread = room({"s/a": (1, 1, 1, 1), "s/b": (1, 1, 1), "s/c": (1, 1)})
    for profile in (kueue.best_fit(), kueue.least_free()):
        assert leaves_of(hosts(spread, profile, 2)) == ["s-c", "s-c"]


def test_kueue_goes_up_a_level_and_down_again():
    """6 pods; no leaf has 6. Spine s has 4 + 3 = 7 free, t has 5 + 4 = 9: s is the tightest that holds the gang. In it best
    fit takes the leaf of 4 and, as the tightest for the two that are left, the leaf of 3. Then the hosts of both are sorted
    together; all have one place, so the first six by name are taken."""
    two = room({"s/a": (1, 1, 1, 1), "s/b": (1, 1, 1), "t/a": (1, 1, 1, 1, 1), "t/b": (1, 1, 1, 1)})
    assert leaves_of(hosts(two, kueue.best_fit(), 6)) == ["s-a"] * 4 + ["s-b"] * 2


def test_kueue_least_free_forgets_what_it_meant_for_each_leaf():
    """6 pods, leaves with 4, 3 and 2 free: least free first takes b (2), c (3) and one of a. But the hosts of the three are
    sorted together, all with one place, and the first six by name are the four of a and the two of b."""
    one = room({"s/a": (1, 1, 1, 1), "s/b": (1, 1), "s/c": (1, 1, 1)})
    assert leaves_of(hosts(one, kueue.least_free(), 6)) == ["s-a"] * 4 + ["s-b"] * 2


def test_kueue_spreads_over_the_top_level_where_no_domain_holds_the_gang():
    """8 pods; s has 5 free (3 + 2), t has 4 (4), u has 3 (3). Best fit: s, then of t and u, which both hold the 3 that are
    left, the tighter u. Then all leaves of s and u are sorted together, 3, 3, 2, and taken."""
    three = room({"s/a": (1, 1, 1), "s/b": (1, 1), "t/a": (1, 1, 1, 1), "u/a": (1, 1, 1)})
    assert leaves_of(hosts(three, kueue.best_fit(), 8)) == ["s-a"] * 3 + ["s-b"] * 2 + ["u-a"] * 3


def test_kueue_orders_ranks_as_text():
    """rack-10 is before rack-2 as text."""
    racks = room({"s/rack-2": (1, 1), "s/rack-10": (1, 1)})
    assert leaves_of(hosts(racks, kueue.best_fit(), 4)) == ["s-rack-10"] * 2 + ["s-rack-2"] * 2


def test_kueue_without_a_level_takes_the_first_hosts_as_text():
    """Every free host has one place: all are equal, and the label values decide, whatever leaf is full."""
    spread = room({"s/a": (1, 0), "s/b": (1, 1), "s/c": (1, 1, 1)})
    assert hosts(spread, kueue.unconstrained(), 3) == ["s-a-0", "s-b-0", "s-b-1"]


def test_best_fit_takes_few_leaves_of_the_tightest_spine_in_depth_first_order():
    """5 pods; s has 1 + 3 + 3 = 7, t has 8 free. In s the two leaves of 3 come first, three hosts of the first of them and
    two of the second; the ring leaves b and c once each."""
    two = room({"s/a": (1,), "s/b": (1, 1, 1), "s/c": (1, 1, 1), "t/a": (1,) * 8})
    assert leaves_of(hosts(two, BestFit(), 5)) == ["t-a"] * 5
    two = room({"s/a": (1,), "s/b": (1, 1, 1), "s/c": (1, 1, 1), "t/a": (1,) * 4, "t/b": (1,) * 4})
    assert leaves_of(hosts(two, BestFit(), 5)) == ["s-b"] * 3 + ["s-c"] * 2


def test_least_allocated_takes_the_emptiest_nodes():
    """Four hosts of 4 places with 4, 2, 3 and 1 left, two pods: the first gets the empty host (3 of 4 left with it), which
    then ties with the third (2 of 4 left with another pod): the second pod goes to one of these two."""
    leaf = room({"s/a": (4, 2, 3, 1)}, whole=4)
    seen = {tuple(hosts(leaf, LeastAllocated(seed), 2)) for seed in range(40)}
    assert seen == {("s-a-0", "s-a-0"), ("s-a-0", "s-a-2")}


@pytest.mark.parametrize(
    ("nodes", "looked_for"), [(99, 99), (100, 100), (847, 372), (1000, 420), (5000, 500), (10000, 500)]
)
def test_the_scheduler_samples_a_share_of_the_nodes(nodes: int, looked_for: int):
    """847 nodes: 50 - 847 // 125 = 44 %, which is 372; 5,000: 50 - 40 = 10 %; beyond 5,625 it stays at 5 %."""
    assert enough(nodes) == looked_for


def test_the_scheduler_goes_on_where_it_stopped():
    """300 empty hosts: a sample is 300 * 48 % = 144 hosts, so the first pod is on one of hosts 0 to 143, the second of 144 to
    287."""
    big = room({"s/a": (1,) * 300})
    scheduler = LeastAllocated(1)
    order = sorted(range(300), key=lambda n: big.index.position[f"s-a-{n}"])
    first, second = scheduler.each(big, order, 2)
    assert first in range(144)
    assert second in range(144, 288)


def test_a_required_label_is_a_value_and_not_a_place():
    """Leaf a exists below both spines and counts as one placement with 2 + 2 free, of which 4 pods take all; leaf b has 5."""
    twice = room({"s/a": (1, 1, 0), "t/a": (1, 1), "s/b": (1, 1, 1, 1, 1)})
    assert [len(group) for group in placements(twice.index, 2)] == [2, 1]
    assert sorted(leaves_of(hosts(twice, RequiredLabel(1), 4))) == ["s-a", "s-a", "t-a", "t-a"]


def test_a_required_label_waits_though_there_is_room_elsewhere():
    """A leaf could hold 3, so the leaf's label is required; now none has more than 2 free, though there are 4 in all."""
    assert RequiredLabel(1).place(room({"s/a": (1, 1, 0), "s/b": (1, 1, 0)}), 3) is None


def test_a_required_label_is_the_narrowest_that_could_ever_hold_the_gang():
    """5 members fit no leaf of 4 but a spine of 8."""
    found = hosts(room({"s/a": (1, 1, 1, 0), "s/b": (1, 1, 1, 0), "t/c": (1, 0, 0, 0)}), RequiredLabel(1), 5)
    assert set(leaves_of(found)) == {"s-a", "s-b"}


def test_random_draws_every_place_at_most_once():
    leaf = room({"s/a": (2, 1), "s/b": (1, 0)}, whole=2)
    assert sorted(hosts(leaf, Anywhere(1), 4)) == ["s-a-0", "s-a-0", "s-a-1", "s-b-0"]
    assert Anywhere(1).place(leaf, 5) is None


def test_random_is_the_seeds():
    leaf = room({"s/a": (1,) * 30})
    assert hosts(leaf, Anywhere(7), 10) == hosts(leaf, Anywhere(7), 10) != hosts(leaf, Anywhere(8), 10)
