"""What a page says of the code or of another page, in words that no generator writes."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict

import pytest

from tests.docs.blocks import PAGES, ROOT, all_blocks
from tests.support.source import modules

sys.path.append(str(ROOT / "docs"))
from benchmark_figures import ROWS, WITH_FIGURES, figures_in, results


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_scripts_that_a_full_server_refuses_are_listed():
    listed = re.search(r"\*\*Memory is full\.\*\*(.*?)\n\n", read("docs/design/architecture.md"), re.DOTALL)[1]
    refused = {file.stem for file in (ROOT / "lua").glob("*.lua") if not re.match(r"#!lua flags=", file.read_text("utf-8"))}
    assert set(re.findall(r"`lua/(\w+)\.lua`", listed)) == refused


def test_the_log_lines_that_a_page_explains_are_lines_of_the_package():
    explained = re.search(r"## What a log line means\n(.*?)\n## ", read("docs/troubleshooting.md"), re.DOTALL)[1]
    quoted = [part for item in re.findall(r"(?m)^\* (`.*?`):", explained) for part in re.split(r"`(?:, `)?| … ", item) if part]
    nodes = (node for module in modules().values() for node in ast.walk(module))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert len(quoted) > 8
    assert [part for part in quoted if not any(part in text for text in texts)] == []


@pytest.mark.parametrize("page", WITH_FIGURES)
def test_a_page_with_figures_of_the_benchmark_follows_them(page):
    """So that docs/generate.py does not miss them after a change of words."""
    changed = re.sub(r"\d+(?:\.\d+)? (?=µs|a second)", "7777 ", read(page))
    changed = re.sub(r"(?<=\| )[\d,.]+(?=/s \|)|(?<=\| )\d\d,000(?= \|)", "7777", changed)
    assert changed != read(page)
    followed = figures_in(changed)
    assert followed != changed
    if page == "README.md":
        assert followed == read(page)
        assert all(f"| {row} |" in followed for row in ROWS)


def test_the_results_have_each_figure_that_is_repeated():
    assert all(label in results() for labels, _ in ROWS.values() for label in labels)


def test_an_alert_that_joins_metrics_joins_those_of_one_broker():
    joined = re.findall(r"\b(?:and|or|unless) on\(([^)]*)\)", read("docs/alert-rules.yml") + read("docs/kubernetes.md"))
    assert joined
    assert all("instance" in labels or "job" in labels for labels in joined)


def published_at_import(code):
    """Return the calls that publish in the top-level statements of a module."""
    calls = (node for statement in ast.parse(code).body if isinstance(statement, ast.Expr) for node in ast.walk(statement))
    return [node.func.attr for node in calls if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in PUBLISHING]


PUBLISHING = {"delay", "apply_async", "send_task"}


def test_a_sample_that_workers_load_publishes_nothing_when_it_is_imported():
    loaded = [block for block in all_blocks("python") if "@app.task" in block.code and "Celery(" in block.code]
    assert loaded
    assert [str(block) for block in loaded if published_at_import(block.code)] == []


def test_a_sample_that_publishes_is_found():
    assert published_at_import("add.delay(1)\nif True:\n    add.delay(2)") == ["delay"]


#: Words in a row that two pages of a writer's hand may not share: what is said twice changes once.
SHARED = 14


def repeated(pages):
    """Return the runs of words that stand on several pages, with these. Code and the targets of links do not count."""
    found = defaultdict(set)
    for name, text in pages.items():
        prose = re.sub(r"^```.*?^```$|<!--.*?-->|\]\([^)]*\)", "", text, flags=re.MULTILINE | re.DOTALL)
        words = re.findall(r"[\w']+", prose.lower())
        for at in range(len(words) - SHARED + 1):
            found[" ".join(words[at : at + SHARED])].add(name)
    return {run: sorted(names) for run, names in found.items() if len(names) > 1}


def test_what_a_page_says_no_other_page_says_in_the_same_words():
    pages = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in PAGES}
    assert repeated({name: text for name, text in pages.items() if not text.startswith("<!-- Made by ")}) == {}


def test_a_repeated_sentence_is_found():
    once = "a b c d e f g h i j k l m n"
    assert repeated({"x": f"{once} o", "y": f"(z) {once}", "z": f"```\n{once}\n```"}) == {once: ["x", "y"]}
