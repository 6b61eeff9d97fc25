"""What the commands print of texts that others chose."""

from __future__ import annotations

import json

import pytest

from celery_redis_plus.admin.formatting import visible
from celery_redis_plus.cli.output import print_fields, print_json, print_table

EVIL = "t\x1b]0;owned\x07\x1b[2J\rx\ny\x9b1m\u202e"
ESCAPED = r"t\x1b]0;owned\x07\x1b[2J\rx\ny\x9b1m\u202e"


@pytest.mark.parametrize(
    ("text", "shown"), [("shop.pay", "shop.pay"), ("ü € 語", "ü € 語"), (EVIL, ESCAPED), ("\udcff", r"\udcff"), ("", "")]
)
def test_what_is_not_printable_is_escaped(text, shown):
    assert visible(text) == shown


def test_a_table_has_one_line_a_row_whatever_is_in_it(capsys):
    print_table(("TASK", EVIL), [[EVIL, 1], ["t", 2]])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head == f"{'TASK':{len(ESCAPED)}}  {ESCAPED}"
    assert first == f"{ESCAPED}  {1:>{len(ESCAPED)}}"
    assert second.split() == ["t", "2"]


def test_the_lines_of_a_field_are_kept_and_escaped(capsys):
    print_fields([("headers.\x1b[31m", "a\nb\x1b[2J")])
    assert capsys.readouterr().out == "headers.\\x1b[31m  a\n                  b\\x1b[2J\n"


def test_json_keeps_the_text(capsys):
    print_json({"task": EVIL})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"task": EVIL}
    assert printed.strip().isprintable()
