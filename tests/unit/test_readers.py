"""Each place that reads stored messages is known, and odd messages go through it; none of them names what reading may raise."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.support.source import PACKAGE, modules

pytestmark = pytest.mark.same_everywhere

#: Functions that read an envelope, a payload, or an event of a message.
READ = {
    "loads", "load", "read_envelope", "shown_envelope", "checked_envelope", "payload_of", "broadcast_payload", "letter_of",
    "split_payload", "from_kombu", "to_kombu",
}  # fmt: skip

#: Test of all odd messages -> the places that it goes through, as `module.py:function`.
TESTED = {
    "tests/integration/readers/test_odd_messages.py": {
        "broker/consumers/claims.py:claimed_messages",
        "broker/dead_letters/store.py:_read", "broker/dead_letters/store.py:letter_of", "broker/dead_letters/store.py:of",
        "broker/dead_letters/store.py:read", "broker/dead_letters/unroutable.py:keep_for",
        "broker/queues/delayed.py:list_delayed", "broker/queues/listing.py:_message", "broker/queues/listing.py:read_copies",
        "broker/queues/listing.py:read_headers", "broker/queues/listing.py:read_small",
        "broker/queues/listing.py:search_headers",
        "broker/queues/messages.py:_standing", "broker/queues/messages.py:move", "broker/queues/messages.py:read",
        "integration/revoked_results.py:mark_revoked", "integration/scheduled.py:_message",
        "stored_message.py:read_envelope", "stored_message.py:shown_envelope",
        "transport/kombu_message.py:broadcast_payload", "transport/stored_json.py:load",
        "transport/kombu_message.py:payload_of",
    },
    "tests/spark/test_replay_of_odd_messages.py": {"spark/replay.py:_send"},
    "tests/unit/test_odd_messages.py": {
        "broker/consumers/failures.py:_task_in",
        "migration/conversion.py:_from_kombu", "migration/conversion.py:_to_kombu", "transport/stored_json.py:revive",
        "migration/importer.py:message_in", "migration/kombu_broker.py:queues_of_unacked", "migration/status.py:_eta_ms",
        # These two only hand messages to the first two.
        "migration/exporter.py:_read", "migration/target.py:convert",
    },
}  # fmt: skip
#: Places that read something else, or what this process has made itself.
OTHERS = {
    "broker/arguments/queue_arguments.py:decode": "a queue's declaration",
    "broker/consumers/processes.py:decode": "a process's record",
    "broker/queues/groups.py:read_groups": "rules of groups, which this package alone writes",
    "broker/exchanges/exchange_record.py:decode_exchange": "an exchange's declaration",
    "broker/exchanges/routing.py:decode_binding": "a binding",
    "broker/publishing/delivery_store.py:_about": "a tracked delivery's record",
    "broker/queues/audit.py:_entry": "an entry of the audit log",
    "broker/queues/policies.py:decode": "a policy", "cli/asking.py:argument_of": "an argument",
    "cli/commands/import_.py:definitions": "a file that the operator names",
    "event_log/archive_folders.py:described": "what the archive says of a folder",
    "event_log/event_logs.py:names_in": "an argument",
    "integration/child_settlements.py:read_settlements": "a pipe from a child",
    "transport/typed_queues.py:payload": "a message that is being published",
    "testing/advancing.py:_envelopes": "messages of a test", "testing/waiting_tasks.py:_as_sent": "an argument of a test",
    "demo/records.py:read": "the demo's log",
}  # fmt: skip


@cache
def functions():
    return [(path, node) for path, module in modules().items() for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]


def reads(module, function):
    """Return whether a function reads messages. The pipeline reads JSON of its own besides: offsets, manifests."""
    read = READ - {"loads", "load"} if module.startswith("spark/") else READ
    return bool(read & set(calls(function)))


def calls(node):
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield getattr(call.func, "attr", getattr(call.func, "id", ""))


def test_each_place_that_reads_stored_messages_gets_odd_ones():
    found = {f"{module}:{function.name}" for module, function in functions() if reads(module, function)}
    known = set().union(*TESTED.values()) | set(OTHERS)
    assert found - known == set(), "send tests/support/odd_messages.py through it, and name it here"
    assert known - found == set(), "gone: take it off the list"


@pytest.mark.parametrize("test", TESTED)
def test_the_tests_of_odd_messages_are_there(test):
    assert "odd_messages import" in (PACKAGE.parent / test).read_text(encoding="utf-8")


#: Functions whose caller tells what it may raise: they name errors of one reply, not of a message.
PARTS = {"read_envelope", "checked_envelope", "payload_of", "broadcast_payload", "split_payload"}


def test_no_reader_guesses_which_errors_a_message_may_raise():
    """Types that applications register with kombu raise what they like: `stored_message.unreadable` has the rule."""
    offenders = []
    for module, function in functions():
        for handler in ast.walk(function):
            if isinstance(handler, ast.Try) and PARTS & {name for part in handler.body for name in calls(part)}:
                caught = {ast.unparse(one.type) if one.type is not None else "" for one in handler.handlers}
                if not caught <= {"UnreadableMessageError", "Exception", "(RedisError, OSError)"}:
                    offenders.append(f"{module}:{function.name} catches {caught}")
    assert not offenders
