"""docs/questions.md: each question of a stranger has a page and a heading with the answer."""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt

from tests.docs.blocks import ROOT
from tests.docs.questions import Question, items, questions


def slug(heading):
    """Return the anchor of a heading, as mkdocs makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def anchors(page):
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return {slug(after.content) for token, after in pairwise(tokens) if token.type == "heading_open"}


def is_there(question):
    page = ROOT / "docs" / question.page
    return page.exists() and (not question.anchor or question.anchor in anchors(page))


def test_the_headings_with_the_answers_exist():
    assert [question for question in questions() if not is_there(question)] == []


def test_there_are_twenty_and_all_are_read():
    assert len(questions()) == len(items()) >= 20


def test_an_item_is_read_to_its_end():
    assert Question.of_row("* [Why `x`?](c.md#a-b) ([x#1](https://x.example)): two words") == Question(
        "Why `x`?", "c.md", "a-b", ("two", "words")
    )
