"""Reads the list of docs/questions.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs/questions.md"
#: An item: the question with its answer, perhaps the issue in which somebody asks it, and the words to search for.
ROW = re.compile(
    r"\* \[(?P<text>[^\]]+)\]\((?P<page>[\w-]+\.md)#?(?P<anchor>[\w-]*)\)(?: \(\[[^\]]+\]\([^)]+\)\))?: (?P<words>[^:]+)"
)


@dataclass(frozen=True)
class Question:
    """A question, and where its answer is."""

    text: str
    page: str
    anchor: str
    words: tuple[str, ...]

    @classmethod
    def of_row(cls, row: str) -> Self | None:
        """Return the question of an item of the list; None for others."""
        match = ROW.fullmatch(row)
        if match is None:
            return None
        return cls(match["text"], match["page"], match["anchor"], tuple(match["words"].split()))


def items() -> list[str]:
    """Return the items of the list, each in one line."""
    return [" ".join(item.split()) for item in re.findall(r"^\* .*(?:\n  .*)*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]


def questions() -> list[Question]:
    """Return the questions in their order."""
    found = map(Question.of_row, items())
    return [question for question in found if question is not None]
