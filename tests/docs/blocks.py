"""Finds the fenced code blocks of the pages that a user reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: The numbered pages of docs/design/ record decisions; their code need not run.
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/design").glob("[a-z]*.md")),
]
#: A block after such a comment is not run; the reason is for the reader of the source.
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    page: Path
    language: str
    #: Of the code's first line, counted from 1.
    line: int
    code: str
    #: Why it is not run by itself; empty where it is.
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the blocks in one of the languages, except those marked as not run."""
    return [block for block in all_blocks(*languages) if not block.reason]


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks in one of the languages, with those marked as not run."""
    pages = [page for page in PAGES if page.exists()]
    return [block for page in pages for block in of_page(page) if block.language in languages]


@cache
def of_page(page: Path) -> tuple[Block, ...]:
    """Return the blocks of a page, with those marked as not run."""
    found = []
    # Every process of the tests reads all pages before its first test: words inside of paragraphs are not looked at.
    tokens = MarkdownIt().disable("inline").parse(page.read_text(encoding="utf-8"))
    for before, token in zip([None, *tokens], tokens, strict=False):
        marked = NOT_RUN.match(before.content) if before is not None and before.type == "html_block" else None
        if token.type == "fence" and token.info and token.map:
            reason = marked[1] if marked else ""
            found.append(Block(page, token.info.split()[0], token.map[0] + 2, token.content, reason))
    return tuple(found)
