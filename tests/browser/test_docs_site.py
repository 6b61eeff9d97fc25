"""The site of the docs in a real browser, opened from its folder: on a phone, and its search."""

from __future__ import annotations

import pytest

from tests.docs.blocks import PAGES, ROOT
from tests.docs.test_site import pytestmark, site  # noqa: F401 - the fixture, and what it needs
from tests.support.waiting import wait_until

PHONE = 360
#: The usual words, and a heading that a search for each has to show.
WORDS = {
    "deduplication": "Deduplication",
    "visibility timeout": "Visibility timeout and heartbeats",
    "rate limit": "Concurrency and rate limits",
    "KEDA": "Scaling by queue length",
    "rollback": "Upgrades without downtime, and rolling back",
    "retry": "Retry policies",
    "purge": "purge",
    "Django": "Django",
    "prefetch": "Prefetch",
    "dead letter": "Dead letters",
    # By docs/assets/search-query.js only.
    "MISCONF Redis is configured to save RDB snapshots": "ServerUnavailable (MISCONF",
}


@pytest.fixture
def reader(browser, site):  # noqa: F811
    """The browser, with the start page before it."""
    browser.look()
    browser.base = site.as_uri()
    browser.open(f"{browser.base}/index.html")
    browser.complaints()
    yield browser
    browser.look()


def test_the_start_page_shows_the_picture_of_a_message(reader):
    wait_until(lambda: reader.run("return document.querySelector('main img').naturalWidth") > 0)


def test_the_site_turns_light_again_after_a_visit_in_the_dark(reader):
    for scheme, palette in (("dark", "slate"), ("light", "default")):
        reader.look(scheme=scheme)
        reader.open(f"{reader.base}/index.html")
        wait_until(lambda palette=palette: reader.run("return document.body.dataset.mdColorScheme") == palette)


@pytest.mark.timeout(300)
def test_no_page_is_wider_than_a_phone(reader):
    reader.look(width=PHONE, height=740)
    wide = {}
    for page in (page for page in PAGES if page.parent == ROOT / "docs"):
        reader.open(f"{reader.base}/{page.stem}.html")
        width = reader.run("return document.documentElement.scrollWidth")
        if width > PHONE:
            wide[page.name] = width
    assert wide == {}


@pytest.mark.parametrize("word", WORDS)
def test_the_search_finds_the_heading_by_the_usual_word(reader, word):
    reader.find(".md-search__input").send_keys(word)
    wait_until(lambda: found(reader), 30, lambda: reader.text)
    wait_until(lambda: WORDS[word].lower() in " ".join(found(reader)[:MOST]).lower(), 30, lambda: found(reader))


#: Headings at which a reader looks.
MOST = 12


def found(reader):
    """Return the headings of the search's results."""
    script = "return [...document.querySelectorAll('.md-search-result__article :is(h1, h2)')].map((one) => one.textContent)"
    return reader.run(script)


def test_the_search_works_on_a_phone(reader):
    reader.look(width=PHONE, height=740)
    reader.open(f"{reader.base}/index.html")
    reader.click("label.md-header__button[for=__search]")
    reader.find(".md-search__input").send_keys("priorities")
    wait_until(lambda: "Priority of messages" in found(reader), 30, lambda: found(reader))
    reader.click(".md-search-result__link")
    wait_until(lambda: "priorit" in reader.run("return location.href"))
