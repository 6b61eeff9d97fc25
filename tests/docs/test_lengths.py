"""A how-to page is read in ten minutes: what grows beyond that is two pages, or says something twice; and all are no book."""

from __future__ import annotations

import re

import yaml

from tests.docs.blocks import ROOT

#: Words of a how-to page, without code and without the bars of tables; of a design record.
MOST, MOST_OF_A_RECORD = 1_350, 430
#: Records that may have more.
RECORDS = {"0013-lost-processes.md": 550, "0022-shards.md": 550}
#: Words as `wc -w` counts them, code and tables included: all pages for users, and all design records.
ALL, ALL_RECORDS = 48_000, 8_000


def how_to_pages(part):
    """Yield the pages below a part of the navigation."""
    if isinstance(part, str):
        yield part
    for below in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from how_to_pages(below)


def words(text):
    """Return how many words of prose a page has, the cells of its tables included."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return len(re.findall(r"[^\s|:-]\S*", prose))


def test_no_how_to_page_is_a_book():
    # mkdocs' own tags, of which the navigation has none, are none of YAML's.
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
    (part,) = (one["How-to guides"] for one in navigation if "How-to guides" in one)
    lengths = {page: words((ROOT / "docs" / page).read_text(encoding="utf-8")) for page in how_to_pages(part)}
    assert len(lengths) > 20
    assert {page: length for page, length in lengths.items() if length > MOST} == {}


def test_a_design_record_is_read_in_three_minutes():
    records = {file.name: words(file.read_text(encoding="utf-8")) for file in (ROOT / "docs/design").glob("0*.md")}
    assert len(records) > 15
    assert {name: length for name, length in records.items() if length > RECORDS.get(name, MOST_OF_A_RECORD)} == {}


def test_all_pages_together_are_no_book():
    def words_of(pages):
        return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)

    assert words_of((ROOT / "docs").glob("*.md")) <= ALL
    assert words_of((ROOT / "docs/design").glob("0*.md")) <= ALL_RECORDS
