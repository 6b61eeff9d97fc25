"""No page for users has a sentence of more than 35 words. `python -m tests.docs.test_sentences` prints the averages."""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt

from tests.docs.blocks import PAGES, ROOT

MOST_WORDS = 35
#: A full stop, with closing marks, before a capital, a number or markup.
END = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[A-Z0-9`*_\[(\"])")
#: One name, or a list of them, counts as one word: a reader skips it.
NAMES = re.compile(r"`[^`]+`(?:, `[^`]+`)*")


def sentences(text: str, *, cells: bool = True) -> list[list[str]]:
    """Return the words of each sentence in paragraphs, list items and, with `cells`, headings and table cells."""
    tokens = MarkdownIt().enable("table").parse(text)
    inline = (
        token.content
        for before, token in pairwise(tokens)
        if token.type == "inline" and (cells or before.type == "paragraph_open")
    )
    plain = (re.sub(r"\]\([^)]*\)", "]", NAMES.sub("Name", block)) for block in inline)
    return [re.findall(r"[\w'/.-]*\w", sentence) for block in plain for sentence in END.split(block)]


def test_no_sentence_is_longer_than_35_words():
    words_of = ((page, words) for page in PAGES for words in sentences(page.read_text(encoding="utf-8")))
    assert [f"{page.relative_to(ROOT)}: {' '.join(words)}" for page, words in words_of if len(words) > MOST_WORDS] == []


if __name__ == "__main__":
    for path in (*PAGES, *sorted((ROOT / "docs/design").glob("*.md"))):
        lengths = [len(words) for words in sentences(path.read_text(encoding="utf-8"), cells=False)]
        print(f"{sum(lengths) / len(lengths):5.1f} words a sentence, {max(lengths):3d} at most  {path.relative_to(ROOT)}")  # noqa: T201 - a command
