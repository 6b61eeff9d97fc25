"""Every file and function that the pages for developers name exists: a rename has to rename it there."""

from __future__ import annotations

import ast
import re

import pytest

from celery_redis_plus.scripts import script_names
from tests.docs.blocks import ROOT

PAGES = ("docs/design/architecture.md", "docs/design/contract.md", "docs/design/states.md", "docs/glossary.md", "CONTRIBUTING.md")
REFERENCE = re.compile(r"`((?:[\w.]+/)+(?:[\w.]+\.(?:py|lua|md|toml))?|[\w.]+\.(?:py|lua|md|toml))(?::([\w.]+))?`")
#: Scripts that change no message's state: they belong to queues, consumers, exchanges, readers, or only look.
NO_TRANSITION = frozenset(
    (
        *(
            "advance",
            "hold_raise",
            "release_raise",
            "close_place",
            "replace_process",
            "heartbeat_process",
            "check_consumers",
            "remove_consumers",
            "bind",
            "tombstone_queues",
            "check_groups",
            "check_messages",
            "check_queue",
            "check_rights",
            "commit_events",
            "end_event_log",
            "increment_counters",
            "count_consumers",
            "counters",
            "queue_overview",
        ),
        *(
            "declare",
            "declare_exchange",
            "next_queue_id",
            "add_to_queue_set",
            "database_id",
            "finish_move",
            "heartbeat_fanout",
            "suspect_subscribers",
            "register_consumer",
            "deregister_consumer",
        ),
        *(
            "leave_wait_queue",
            "list_consumers",
            "list_messages",
            "list_overdue",
            "list_subscribers",
            "find_message",
            "search_messages",
            "explain_message",
            "own_queue",
        ),
        *(
            "pause",
            "replace_arguments",
            "set_group",
            "list_groups",
            "check_limiters",
            "list_limiters",
            "set_limiter",
            "take_limiter",
            "write_policy",
            "publish_fanout",
            "publish_fanout_bounded",
            "remove_expired_subscribers",
            "list_queue",
            "notify",
            "set_event_log",
            "subscribe_fanout",
        ),
        *(
            "report_no_credit",
            "log_failed",
            "extend_queue_ttl",
            "track",
            "track_overdue",
            "track_report",
            "unsubscribe_fanout",
            "notify_if_ready",
        ),
    )
)


def text(page):
    return (ROOT / page).read_text(encoding="utf-8")


def file_of(path):
    """Return the file or folder that a page means: from the top, from the package, or a file of its root."""
    found = [root / path for root in (ROOT, ROOT / "celery_redis_plus", ROOT / "docs") if (root / path).exists()]
    return found[0] if found else None


def names_in(file):
    """Return the functions, classes and methods of a Python file: `name`, `Class.method`."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {node.name, *(f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef))}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_function_that_a_page_names_exists(page):
    found = REFERENCE.findall(text(page))
    assert found or page.endswith("glossary.md")
    for path, name in found:
        file = file_of(path)
        assert file is not None, f"{page} names {path}"
        if name:
            assert name in names_in(file), f"{page} names {path}:{name}"


def test_a_missing_path_or_function_is_found():
    assert file_of("broker/nothing.py") is None
    assert REFERENCE.findall("`broker/keys.py:Keys.no` `x.py` `lua/` `a b`") == [
        ("broker/keys.py", "Keys.no"),
        ("x.py", ""),
        ("lua/", ""),
    ]
    assert "Keys.no" not in names_in(file_of("keys.py"))


def test_every_script_is_a_transition_on_the_page_of_states_or_changes_no_state():
    named = set(re.findall(r"`lua/(\w+)\.lua`", text("docs/design/states.md")))

    assert named | NO_TRANSITION == set(script_names())
    assert not named & NO_TRANSITION


def test_the_glossary_has_at_most_25_words():
    rows = re.findall(r"^\* ", text("docs/glossary.md"), re.MULTILINE)

    assert 15 <= len(rows) <= 25


def test_eleven_questions_have_an_answer_with_a_path():
    questions = text("docs/design/architecture.md").partition("## Eleven questions")[2]
    rows = [row for row in questions.splitlines() if row.endswith("|") and "? |" in row]

    assert len(rows) == 11
    assert all(REFERENCE.search(row) for row in rows)
