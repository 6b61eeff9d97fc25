"""Names, headers and bodies that others chose, on the web page."""

from __future__ import annotations

import html
import re

import pytest

from tests.support.inbox import Inbox, publish

SCRIPT = "<script>alert(1)</script>"
NAMES = [
    SCRIPT, "a/b?c#d", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}{% raw %}", " a&b=c;d ", "%2e%2e/%00 ü 漢 💥", "[a-z]*",
    "line\nbreak\u202etxt", "javascript:alert(1)",
]  # fmt: skip


def links(text, path):
    return [html.unescape(found) for found in re.findall(rf'href="({path}\?[^"]+)"', text)]


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_of_any_name_is_shown_paused_searched_and_its_dead_letters_replayed(page, channel, dead, name):
    (tag,) = dead(name, SCRIPT, headers={"task": name, "id": name, name: name})
    queues = page.get("/")
    assert_escaped(queues)
    (link,) = links(queues.text, "/queue")
    publish(channel, name, "x", headers={"task": SCRIPT})
    queue = page.get(link)
    assert queue.status == 200
    assert_escaped(queue)
    (message,) = links(queue.text, "/message")
    assert page.get(message).status == 200
    letters = page.get(links(queues.text, "/dead-letters")[0])
    (dead_message,) = links(letters.text, "/message")
    for answer in (letters, page.get(dead_message), page.get("/dead-letters"), page.get("/search", q=name + "x")):
        assert_escaped(answer)
    paused = page.post("/queue/pause", {"reason": SCRIPT}, name=name)
    assert "is paused" in paused.text
    assert_escaped(paused)
    replayed = page.post("/dead-letters/replay", {"tag": tag}, queue=name)
    assert "1 of 1 dead letters" in replayed.text
    page.post("/queue/resume", name=name)
    assert SCRIPT in Inbox(channel, name).exactly(2)


def assert_escaped(answer):
    """Fail where a text of others became a tag, an attribute, or a template."""
    assert SCRIPT not in answer.text
    assert "<img" not in answer.text
    assert "onerror=alert(1)>" not in answer.text.replace("onerror=alert(1)&gt;", "")
    assert "49{" not in answer.text
    assert "\u202e" not in answer.text
    assert len(re.findall("<script", answer.text)) == 1


def test_bytes_that_are_no_text_are_shown_escaped(page, channel, redis_client):
    publish(
        channel, "q", b"\xff\xfe\x00\x1b[31m<b>", serializer="raw", content_type="application/x-none", content_encoding="binary"
    )
    (message,) = links(page.get("/queue", name="q").text, "/message")
    text = page.get(message).text
    assert r"\xff\xfe\x00\x1b[31m&lt;b&gt;" in text


def test_headers_of_odd_types_are_shown(page, channel):
    publish(channel, "q", "x", headers={"task": "t", "nested": {"<b>": [1, None, SCRIPT]}, "number": 1.5, "none": None})
    (message,) = links(page.get("/queue", name="q").text, "/message")
    answer = page.get(message)
    assert_escaped(answer)
    assert "&lt;b&gt;" in answer.text
