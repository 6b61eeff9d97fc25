"""What mkdocs adds to the site: the changelog as a page, the version in each footer, pages for users first in a search."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from celery_redis_plus.version import __version__

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
PAGE = "changelog.md"
QUESTIONS = "questions.md"
#: How much the changelog, or a page for developers, counts in a search beside others.
BEHIND = 0.3


def on_config(config: Any) -> Any:
    """Name the version and the licence below each page."""
    config["copyright"] = f"Version {__version__} · MIT licence"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog, with its links as a page of the site has them; what is no page of the site is no link there."""
    text = CHANGELOG.read_text(encoding="utf-8").replace("](docs/", "](")
    text = re.sub(r"\[([^\]]+)\]\((?!https?:|#)(?![\w/-]+\.md)[^)]+\)", r"\1", text)
    files.append(File.generated(config, PAGE, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the internals, the design records and the changelog behind the pages for users in a search."""
    source: str = page.file.src_uri
    if source == QUESTIONS:
        # It lists others' headings: a search finds those themselves.
        page.meta["search"] = {"exclude": True}
    internal = any(section.title == "Internals" for section in page.ancestors)
    if internal or source == PAGE or source.startswith("design/"):
        page.meta["search"] = {"boost": BEHIND}
    return markdown
