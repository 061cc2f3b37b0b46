"""When a gang would start: never later than the first moment at which there is a place, and never earlier."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import GPU, MEMBER, a_cluster, a_room, clusters, only_free
from trainyard.planner import forecast as module
from trainyard.planner.forecast import Start, earliest
from trainyard.planner.place import Placement, place
from trainyard.planner.request import Request

NOW = 1000.0


def gang(nodes, **also):
    return Request("default/head", nodes, MEMBER, **also)


def end(time, *nodes, gpus=8):
    return time, {node: {GPU: gpus} for node in nodes}


def test_a_gang_that_fits_starts_now():
    room = a_room(nodes := a_cluster(), only_free(nodes, "a1-0", "a1-1"))
    found = earliest(room, gang(2), [end(2000.0, "b1-0")], NOW)
    assert found == Start(NOW, place(room.supply(gang(2).demand), gang(2)))


def test_it_starts_when_the_last_that_it_needs_has_left():
    room = a_room(nodes := a_cluster(), only_free(nodes, "a1-0"))
    ends = [end(3000.0, "b1-0", "b1-1"), end(1500.0, "a2-0"), end(2000.0, "a1-1", "a2-1")]
    found = earliest(room, gang(4), ends, NOW)
    assert found is not None
    assert found.time == 2000.0
    assert set(found.placement.nodes) == {"a1-0", "a1-1", "a2-0", "a2-1"}


def test_ends_far_apart_do_not_add_up_to_a_domain():
    room = a_room(nodes := a_cluster(), only_free(nodes))
    ends = [end(1500.0, "a1-0", "b1-0"), end(1600.0, "a2-0", "b2-0"), end(1700.0, "b2-1")]
    found = earliest(room, gang(2, level="leaf", required=True), ends, NOW)
    assert found is not None
    assert (found.time, set(found.placement.nodes)) == (1700.0, {"b2-0", "b2-1"})


def test_a_time_that_has_passed_means_now():
    room = a_room(nodes := a_cluster(), only_free(nodes))
    found = earliest(room, gang(1), [end(NOW - 50, "a1-0")], NOW)
    assert found is not None
    assert found.time == NOW


def test_where_all_ends_are_not_enough_there_is_no_time():
    room = a_room(nodes := a_cluster(), only_free(nodes))
    assert earliest(room, gang(3), [end(2000.0, "a1-0", "a1-1")], NOW) is None
    assert earliest(room, gang(1, level="rack", required=True), [end(2000.0, "a1-0")], NOW) is None


def test_half_a_node_counts_when_the_other_half_is_left_too():
    room = a_room(nodes := a_cluster(), only_free(nodes))
    found = earliest(room, gang(1), [end(2000.0, "a1-0", gpus=4), end(2500.0, "a1-0", gpus=4)], NOW)
    assert found is not None
    assert found.time == 2500.0


def test_nodes_that_the_gang_may_not_have_do_not_count():
    room = a_room(nodes := a_cluster(), only_free(nodes, "a1-1"))
    ends = [end(2000.0, "a1-0"), end(3000.0, "b1-0")]
    avoiding = earliest(room, gang(1, avoid=frozenset({"a1-1", "a1-0"})), ends, NOW)
    without = earliest(room, gang(1), ends, NOW, without={"a1-1", "a1-0"})
    assert avoiding is not None
    assert without is not None
    assert avoiding.time == without.time == 3000.0


def test_the_room_is_as_it_was():
    room = a_room(nodes := a_cluster(), only_free(nodes))
    before = room.supply(gang(1).demand).copy()
    earliest(room, gang(2), [end(2000.0, "a1-0", "a1-1")], NOW)
    assert room.supply(gang(1).demand) == before


@st.composite
def waits(draw):
    """A cluster in which jobs hold nodes, shared by halves at times, and end at stated times."""
    cluster = draw(clusters(most=7))
    taken = dict.fromkeys(cluster, 0)
    ends = []
    for _ in range(draw(st.integers(0, 6))):
        gpus = draw(st.sampled_from([4, 8]))
        usable = [name for name in cluster if taken[name] + gpus <= 8]
        held = draw(st.lists(st.sampled_from(usable), min_size=1, max_size=3, unique=True)) if usable else []
        for name in held:
            taken[name] += gpus
        ends.append(end(NOW + draw(st.integers(-1, 4)), *held, gpus=gpus))
    level = draw(st.sampled_from([None, "spine", "leaf"]))
    segment = draw(st.sampled_from([1, 1, 2]))
    nodes = segment * draw(st.integers(1, 4 // segment))
    required = level is not None and draw(st.booleans())
    wanted = gang(nodes, level=level, required=required, segment=segment, segment_level="leaf" if segment > 1 else None)
    return cluster, {name: {GPU: 8 - used} for name, used in taken.items()}, wanted, ends


def by_trying(cluster, free, wanted, ends):
    """The first time at which there is a place, looked for at every time, and before that as things are."""
    found = place(a_room(cluster, free).supply(wanted.demand), wanted)
    if isinstance(found, Placement):
        return Start(NOW, found)
    for time in sorted({NOW, *(max(NOW, time) for time, _ in ends)}):
        left = {name: dict(amounts) for name, amounts in free.items()}
        for other, usage in ends:
            if max(NOW, other) <= time:
                for node, amounts in usage.items():
                    left[node][GPU] += amounts[GPU]
        found = place(a_room(cluster, left).supply(wanted.demand), wanted)
        if isinstance(found, Placement):
            return Start(time, found)
    return None


@given(waits())
def test_no_other_time_is_the_first(wait):
    cluster, free, wanted, ends = wait
    assert earliest(a_room(cluster, free), wanted, ends, NOW) == by_trying(*wait)


@settings(max_examples=50)
@given(waits())
def test_halving_finds_the_same_as_following(wait):
    """As it is for a gang of which the counts do not say all."""
    cluster, free, wanted, ends = wait
    supposed = module.Supposition(a_room(cluster, free), wanted)
    if supposed.plan() is None:
        assert module._halved(supposed, module._by_time(ends, NOW)) == by_trying(*wait)


@settings(max_examples=50)
@given(waits(), st.randoms())
def test_the_order_in_which_ends_are_told_does_not_matter(wait, shuffle):
    cluster, free, wanted, ends = wait
    mixed = list(ends)
    shuffle.shuffle(mixed)
    assert earliest(a_room(cluster, free), wanted, mixed, NOW) == earliest(a_room(cluster, free), wanted, ends, NOW)


@settings(max_examples=50)
@given(waits(), st.integers(0, 5), st.integers(1, 3))
def test_who_ends_earlier_never_makes_the_gang_wait_longer(wait, which, sooner):
    cluster, free, wanted, ends = wait
    if not ends:
        return
    hurried = list(ends)
    time, usage = hurried[which % len(ends)]
    hurried[which % len(ends)] = (time - sooner, usage)
    room = a_room(cluster, free)
    late, early = earliest(room, wanted, ends, NOW), earliest(room, wanted, hurried, NOW)
    assert late is None or (early is not None and early.time <= late.time)
