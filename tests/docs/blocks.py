"""Finds the fenced code blocks of the pages that a user reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: The pages of docs/design/ record decisions; their code need not run.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: A block after such a comment is not run; the reason is for the reader of the source.
NOT_RUN = re.compile(r"<!-- not run: .+ -->")


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    page: Path
    language: str
    #: Of the code's first line, counted from 1.
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the blocks in one of the languages, except those marked as not run."""
    return [block for page in PAGES if page.exists() for block in of_page(page) if block.language in languages]


def of_page(page: Path, *, all_of_them: bool = False) -> list[Block]:
    """Return the blocks of a page, except those marked as not run."""
    found = []
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    for before, token in zip([None, *tokens], tokens, strict=False):
        excused = not all_of_them and before is not None and before.type == "html_block" and NOT_RUN.match(before.content)
        if token.type == "fence" and token.info and token.map and not excused:
            found.append(Block(page, token.info.split()[0], token.map[0] + 2, token.content))
    return found
