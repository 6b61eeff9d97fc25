import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redis_plus import events
from celery_redis_plus.broker.publishing.publisher import NO_DESCRIPTION
from celery_redis_plus.errors import UnknownEventSchema
from celery_redis_plus.events import TRANSITIONS, VALUE, Event
from tests.support.events import illegal_steps

TAG = "0195f0c4a2b0000004d.1k"

texts = st.one_of(st.none(), st.text(min_size=1))
numbers = st.one_of(st.none(), st.integers(0, 2**31 - 1))


@st.composite
def any_events(draw):
    values = {column.name: draw(texts if column.kind == "text" else numbers) for column in VALUE[3:] if column.name != "root_id"}
    return Event(event=draw(st.sampled_from(sorted(TRANSITIONS))), ts=1, id=TAG, root_id=values["task_id"], **values)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(any_events())
def test_what_is_encoded_is_decoded_unchanged(event):
    assert events.decode(events.encode(event)) == event


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(any_events())
def test_every_value_has_nineteen_tabs_and_one_line(event):
    value = events.encode(event)
    assert value.count(b"\t") == 19
    assert b"\n" not in value
    assert b"\r" not in value


@given(st.text())
def test_a_packed_text_holds_no_separator_and_comes_back(text):
    packed = events.pack_text(text)
    assert not set("\t\n\r") & set(packed)
    assert events.unpack_text(packed) == text


def test_the_values_in_the_documentation_for_scripts_are_decoded():
    ts, tag, no_description = "1764000000123456", TAG, "\t" * 10
    claimed = "claimed\t" + ts + "\t" + tag + "\t" + "3" + "\t" + "w1@host" + "\t\t\t\t\t" + no_description
    acked = "acked\t" + ts + "\t" + tag + "\t\t\t" + "failure" + "\t" + "ValueError" + "\t\t\t" + no_description
    delayed = "delayed\t" + ts + "\t" + tag + "\t\t\t\t\t" + "1500" + "\t\t" + no_description
    published = "published\t" + ts + "\t" + tag + "\t\t\t\t\t\t\t" + events.pack_description(task_id="T", task="a.b", priority=0)
    assert events.decode(delayed.encode()) == Event(event="delayed", ts=int(ts), id=tag, delay=1500)
    assert events.decode(claimed.encode()) == Event(event="claimed", ts=int(ts), id=tag, claim=3, worker="w1@host")
    assert events.decode(acked.encode()) == Event(event="acked", ts=int(ts), id=tag, reason="failure", error="ValueError")
    assert events.decode(published.encode()) == Event(
        event="published", ts=int(ts), id=tag, task_id="T", root_id="T", task="a.b", priority=0
    )


def test_a_root_id_equal_to_the_task_id_is_not_stored_twice():
    assert events.pack_description(task_id="T", root_id="T") == "T" + "\t" * 10
    assert "R" in events.pack_description(task_id="T", root_id="R")


def test_a_publisher_s_empty_description_has_every_column():
    assert events.pack_description().encode() == NO_DESCRIPTION


def test_an_unknown_description_column_is_refused():
    with pytest.raises(TypeError, match="queue_name"):
        events.pack_description(queue_name="q")


@pytest.mark.parametrize(("field", "value"), [(b"v2", events.encode(Event(event="acked", ts=1, id=TAG))), (b"v", b"acked\t1")])
def test_an_entry_of_another_version_is_an_error_that_says_what_to_do(field, value):
    with pytest.raises(UnknownEventSchema, match=r"version 1.*Upgrade"):
        events.decode(value, field)


def test_the_time_of_publishing_is_in_the_id():
    assert events.published_at(TAG) == 0x0195F0C4A2B


@given(st.integers(0, 1000), st.integers(0, 2**32 - 1001))
def test_any_thousand_messages_in_a_row_have_exactly_the_sampled_share(permille, first):
    ids = (f"0195f0c4a2b{n:08x}.1k" for n in range(first, first + 1000))
    assert sum(events.sampled(message_id, permille) for message_id in ids) == permille


@pytest.mark.parametrize(
    ("path", "state"),
    [
        (["published"], "ready"),
        (["published", "claimed", "acked"], "gone"),
        (["published", "delayed", "promoted", "claimed", "recovered", "claimed", "retried", "promoted"], "ready"),
        (["published", "claimed", "dead_lettered", "replayed", "claimed", "requeued", "purged"], "gone"),
        (["published", "claimed", "dead_lettered", "moved"], "gone"),
    ],
)
def test_paths_that_the_design_allows_are_legal(path, state):
    assert illegal_steps(path) == []
    assert TRANSITIONS[path[-1]].target == state


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (["claimed"], "claimed after nothing"),
        (["published", "claimed", "acked", "acked"], "acked after acked"),
        (["published", "published"], "published after published"),
        (["published", "delayed", "claimed"], "claimed after delayed"),
        (["published", "eaten"], "unknown event eaten"),
    ],
)
def test_paths_that_cannot_be_are_named(path, problem):
    assert illegal_steps(path) == [problem]


@pytest.mark.parametrize(
    ("state", "event", "reason", "tried", "shown"),
    [
        ("ready", "published", "", False, "PENDING"),
        ("delayed", "delayed", "", False, "DELAYED"),
        ("delayed", "retried", "", True, "RETRYABLE"),
        ("claimed", "claimed", "", True, "PROCESSING"),
        ("gone", "acked", "", True, "COMPLETED"),
        ("gone", "acked", "failure", True, "FAILED"),
        ("gone", "acked", "retry", True, "RETRIED"),
        ("gone", "failed", "retry", True, "RETRIED"),
        ("gone", "cancelled", "", False, "FAILED"),
        ("gone", "moved", "", False, "MOVED"),
        ("dead", "dead_lettered", "rejected", True, "DEAD"),
    ],
)
def test_states_are_shown_by_their_names(state, event, reason, tried, shown):
    assert events.shown_state(state, event=event, reason=reason, tried=tried) == shown


def test_ids_and_ended_epochs_are_parsed():
    assert events.entry_id(b"1764000000000-17") == (1764000000000, 17)
    assert events.ended_epochs("5:10 7:2 ") == [(5, 10), (7, 2)]
    assert events.ended_epochs("") == []
