"""What is known does not depend on the order in which lists, watches and our own writes tell of it."""

from hypothesis import given
from hypothesis import strategies as st
from trainyard.kube.store import Seen, Store, newer


def at(version: int | str, name: str = "a", record: str | None = "", uid: str = "") -> Seen[str]:
    kept = f"{name}@{version}" if record == "" else record
    return Seen(name, uid or f"uid-{name}", str(version), kept)


def test_older_news_of_the_same_object_is_no_news():
    store: Store[str] = Store()
    store.observe(at(7))
    store.tell(at(5))
    assert store.records == {"a": "a@7"}
    store.tell(at(8))
    assert store.records == {"a": "a@8"}


def test_versions_of_different_objects_under_one_name_are_not_compared():
    store: Store[str] = Store()
    store.tell(at(900, uid="old"))
    store.tell(at(5, uid="new"))
    assert store.records == {"a": "a@5"}
    store.forget("a", "old")
    assert store.records == {"a": "a@5"}


def test_versions_that_are_no_numbers_are_taken_in_the_order_of_their_coming():
    assert newer("x1", "x2")
    assert newer("x2", "x1")
    assert not newer("x1", "x1")


def test_a_list_forgets_what_it_does_not_hold_and_keeps_what_was_written_while_it_was_read():
    store: Store[str] = Store()
    store.tell(at(3, "vanished"))
    store.observe(at(4, "written-before"))
    store.begin()
    store.observe(at(11, "written-during"))
    store.observe(at(9, "seen-by-the-list"))
    store.replace([at(6, "listed")], version="10")
    assert set(store.records) == {"listed", "written-during"}


def test_a_list_from_a_restored_server_replaces_newer_versions():
    store: Store[str] = Store()
    store.tell(at(5000))
    store.tell(at(5001, "lost"))
    store.begin()
    store.replace([at(70)], version="80")
    assert store.records == {"a": "a@70"}
    store.tell(at(81))
    assert store.records == {"a": "a@81"}


def test_what_is_deleted_returns_by_the_watch_alone():
    store: Store[str] = Store()
    store.tell(at(1))
    store.forget("a", "uid-a")
    store.observe(at(2))
    assert store.records == {}
    store.tell(at(3))  # it fulfils the selector again
    assert store.records == {"a": "a@3"}


def test_an_object_of_no_interest_is_not_shown_but_its_version_counts():
    store: Store[str] = Store()
    store.tell(at(1))
    store.tell(at(2, record=None))
    assert store.records == {}
    store.observe(at(1))
    assert store.records == {}


def test_what_cannot_be_read_stays_as_it_was_known():
    store: Store[str] = Store()
    store.tell(at(1))
    store.begin()
    store.replace([], version="9", unreadable={"a"})
    assert store.records == {"a": "a@1"}


def test_the_generation_changes_just_when_the_records_do():
    store: Store[str] = Store()
    store.tell(at(5))
    seen = store.generation
    store.tell(at(5))
    store.observe(at(4))
    store.forget("b", "uid-b")
    assert store.generation == seen
    store.forget("a", "uid-a")
    assert store.generation == seen + 1


def test_a_newer_version_in_which_nothing_of_interest_is_another_is_no_change():
    store: Store[str] = Store()
    store.tell(at(5, record="same"))
    seen, record = store.generation, store.records["a"]
    store.tell(at(6, record="".join(["sa", "me"])))
    assert store.generation == seen
    assert store.records["a"] is record
    store.tell(at(5, record="older"))
    assert store.records["a"] == "same"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30, unique=True), st.data())
def test_whatever_order_answers_to_writes_come_in_the_newest_state_wins(versions, data):
    """The watch is in order; the answers to our own writes may be late by any amount."""
    events = iter(sorted(versions))
    late = data.draw(st.permutations(versions))
    store: Store[str] = Store()
    told = 0
    for answered in late:
        if data.draw(st.booleans()) and (event := next(events, None)) is not None:
            store.tell(at(event))
            told = max(told, event)
        store.observe(at(answered))
        assert int(store.records["a"].partition("@")[2]) >= max(told, answered)
    for event in events:
        store.tell(at(event))
    assert store.records == {"a": f"a@{max(versions)}"}
