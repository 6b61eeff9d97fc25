"""What the web page shows."""

from __future__ import annotations

import html
import re
import socket

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.queues import listing
from celery_redis_plus.cli.web import pages
from celery_redis_plus.cli.web.samples import Sampler
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until
from tests.support.web_page import web_page


def rows(answer):
    """Return the cells of each row of the page's tables, without tags."""
    bodies = re.findall(r"<tr>(.*?)</tr>", "".join(re.findall(r"<tbody>(.*?)</tbody>", answer.text, re.DOTALL)), re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", body, re.DOTALL) for body in bodies]
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells]


def test_queues_are_shown_with_their_figures(page, channel, connect, dead):
    dead("shop", "dies")
    publish(channel, "shop", "waits", "waits")
    publish(channel, "shop", "later", headers={"x-delay": 3_600_000})
    declare(channel, "idle")
    inbox = Inbox(connect().channel(), "work", ack=False)
    publish(channel, "work", "x")
    inbox.drain(1)
    found = {row[0]: row[1:6] for row in rows(page.get("/"))}
    assert found == {
        "shop": ["2", "1", "0", "1", "0"],
        "idle": ["0", "0", "0", "0", "0"],
        "work": ["0", "0", "1", "0", "1"],
    }


def test_a_part_of_a_name_selects_queues_a_page_at_a_time(page, channel, monkeypatch):
    monkeypatch.setattr(pages, "QUEUES_A_PAGE", 2)
    declare(channel, "shop.a", "shop.b", "Shop.c", "mail")
    first = page.get("/", name="shop")
    assert [row[0] for row in rows(first)] == ["Shop.c", "shop.a"]
    assert "3 queues" in first.text
    assert "page=1&amp;name=shop" in first.text
    assert [row[0] for row in rows(page.get("/", name="shop", page=1))] == ["shop.b"]


def test_rates_and_lines_are_of_the_samples_that_the_server_keeps(page, channel, broker_url):
    declare(channel, "q")
    with BrokerAdmin(broker_url) as admin:
        page.samples.add(admin.overview(), 100.0)
        publish(channel, "q", *range(20))
        page.samples.add(admin.overview(), 110.0)
    answer = page.get("/")
    assert rows(answer)[0][6:8] == ["2.0", "0.0"]
    assert 'points="0.0,26.5 120.0,1.5"' in answer.text
    assert "the last 10 s" in page.get("/queue", name="q").text


def test_the_sampler_looks_again_and_again_and_survives_errors(page, channel, broker_url):
    declare(channel, "q")
    asked = []

    def admin():
        asked.append(1)
        if len(asked) == 2:
            raise OSError("away")
        return broker

    with BrokerAdmin(broker_url) as broker, Sampler(page.samples, admin, interval_s=0.01):
        wait_until(lambda: len(page.samples.of("q")) > 3)
        channel.queue_delete("q")
        wait_until(lambda: page.samples.of("q") == [])


def test_messages_of_each_state_are_shown_in_pages(page, channel, monkeypatch):
    monkeypatch.setattr(pages, "ROWS", 2)
    monkeypatch.setattr(listing, "LISTING_PAGE", 2)
    declare(channel, "q")
    for number in range(5):
        publish(channel, "q", "x", headers={"task": f"task.{number}", "id": f"id-{number}"})
    publish(channel, "q", "x", headers={"task": "later", "id": "id-9", "x-delay": 3_600_000})
    seen = [[row[0] for row in rows(page.get("/queue", name="q", page=number))] for number in range(3)]
    assert seen == [["task.0", "task.1"], ["task.2", "task.3"], ["task.4"]]
    assert "page=1&amp;name=q&amp;state=ready" in page.get("/queue", name="q").text
    (delayed,) = rows(page.get("/queue", name="q", state="delayed"))
    assert (delayed[0], delayed[2]) == ("later", "id-9")
    assert "None." in page.get("/queue", name="q", state="unacked").text


def test_messages_of_a_task_are_found_among_some_at_a_time(page, channel, monkeypatch):
    monkeypatch.setattr(pages, "SEARCHED", 4)
    declare(channel, "q")
    for number in range(6):
        publish(channel, "q", "x", headers={"task": "shop.mail" if number % 2 else "shop.pay", "id": f"id-{number}"})
    first = page.get("/queue", name="q", task="shop.m*")
    assert [row[2] for row in rows(first)] == ["id-1", "id-3"]
    assert "2 of this task among messages 1 to 4<" in first.text
    assert "name=q&amp;state=ready&amp;task=shop.m%2A" in first.text
    second = page.get("/queue", name="q", task="shop.m*", page=1)
    assert [row[2] for row in rows(second)] == ["id-5"]
    assert "1 of this task among messages 5 to 6<" in second.text
    assert [row[2] for row in rows(page.get("/queue", name="q"))] == [f"id-{number}" for number in range(6)]
    assert "&lt;i&gt;" in page.get("/queue", name="q", task="<i>").text


def test_a_message_is_shown_with_its_body_and_headers(page, channel):
    publish(channel, "q", {"amount": 7}, headers={"task": "shop.pay", "id": "id-1", "note": "hello"})
    (row,) = rows(page.get("/queue", name="q"))
    assert row[0] == "shop.pay"
    path = html.unescape(re.search(r'href="(/message[^"]+)"', page.get("/queue", name="q").text)[1])
    text = html.unescape(page.get(path).text)
    assert '{"amount": 7}' in text
    assert "hello" in text
    assert "PENDING" in text


def test_a_body_over_a_megabyte_is_not_fetched_and_a_long_one_is_cut(page, channel, redis_client):
    publish(channel, "big", "x" * 1_100_000, serializer="raw", content_type="text/plain", content_encoding="utf-8")
    publish(channel, "long", "y" * 30_000)
    for queue, said in (("big", "It has over 1 MB"), ("long", "the first 20,000 of 30,000 bytes")):
        path = html.unescape(re.search(r'href="(/message[^"]+)"', page.get("/queue", name=queue).text)[1])
        text = page.get(path).text
        assert said in text
        assert len(text) < 30_000


def test_scheduled_messages_of_all_queues_are_shown_by_their_time(page, channel):
    declare(channel, "a", "b")
    for queue, delay in (("a", 3_000_000), ("b", 1_000_000), ("a", 2_000_000)):
        publish(channel, queue, "x", headers={"task": f"in.{delay}", "x-delay": delay})
    answer = page.get("/scheduled")
    assert [row[:2] for row in rows(answer)] == [["in.1000000", "b"], ["in.2000000", "a"], ["in.3000000", "a"]]
    assert "3 delayed messages, the next due first." in answer.text


def test_dead_letters_are_shown_with_their_reason(page, channel, dead):
    dead("q", "x", "y", headers={"task": "shop.refund", "id": "id-1"})
    declare(channel, "fine")
    assert rows(page.get("/dead-letters")) == [["q", "2"]]
    found = rows(page.get("/dead-letters", queue="q"))
    assert [(row[0], row[2]) for row in found] == [("shop.refund", "rejected")] * 2


def test_the_page_of_a_queue_shows_its_arguments_limits_and_bindings(page, channel):
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    kombu.Queue("q", kombu.Exchange("shop", "topic"), "pay.*", durable=True, queue_arguments=arguments)(channel).declare()
    publish(channel, "q", "x")
    declare(channel, "w1@pod.celery.pidbox")
    text = html.unescape(page.get("/queue", name="q").text)
    assert "<dt>x-overflow</dt><dd>reject-publish</dd>" in text
    assert "<dd>1 of 1 in use</dd>" in text
    assert ["shop", "pay.*"] in [row[:2] for row in rows(page.get("/queue", name="q"))]
    assert [row[0].split() for row in rows(page.get("/"))] == [["q", "full"]]
    assert {row[0].split()[0] for row in rows(page.get("/", internal="1"))} == {"q", "w1@pod.celery.pidbox"}


def test_the_page_of_a_message_says_why_it_waits(page, channel, broker_url):
    declare(channel, "q")
    publish(channel, "q", "first", "second")
    with BrokerAdmin(broker_url) as admin:
        admin.pause("q", "the database moves")
    *_, last = re.findall(r'href="(/message[^"]+)"', page.get("/queue", name="q").text)
    text = html.unescape(page.get(html.unescape(last)).text)
    for cause in ("queue 'q' is paused by ", ": the database moves", "has no live consumer", "1 message is before it: 0 of a"):
        assert cause in text
    assert "Its turn: not before its queue has a consumer" in text


def test_consumers_and_subscribers_are_shown(page, connect):
    Inbox(connect().channel(), "work")
    exchange = kombu.Exchange("news", type="fanout")
    Inbox(connect().channel(), kombu.Queue("reader", exchange))

    def shown():
        return {row[0]: row for row in rows(page.get("/consumers"))}

    found = shown()
    assert (found["news"][1], found["news"][2] in {"bound", "live"}, found["news"][3]) == ("reader", True, "0")
    assert found["work"][1] == socket.gethostname()
    # A consumer changes its state by itself, perhaps between the two pages.
    wait_until(lambda: rows(page.get("/queue", name="work"))[0][:5] == shown()["work"][:5])


def test_a_search_leads_to_a_queue_or_to_a_message_by_its_id_or_task_id(page, channel, dead):
    (tag,) = dead("q", "x")
    publish(channel, "q", "x", headers={"task": "later", "id": "task-id-1", "x-delay": 3_600_000})

    def leads_to(wanted):
        return page.get("/search", q=wanted).headers["Location"]

    assert leads_to("q") == "/queue?name=q"
    assert leads_to(f" {tag} ").startswith("/message?queue=q&id=")
    assert "later" in page.get(leads_to("task-id-1")).text
    missing = page.get("/search", q="<b>nothing")
    assert (missing.status, "&lt;b&gt;nothing" in missing.text) == (404, True)
    assert page.get("/search").status == 200


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/queue?name=nonesuch", 404, "there is no queue"),
        ("/dead-letters?queue=nonesuch", 404, "there is no queue"),
        ("/message?queue=nonesuch&id=1", 404, "there is no queue"),
        ("/message?queue=q&id=1", 404, "knows no message"),
        ("/message?queue=q&id=" + "0" * 19 + "%ffa", 404, "knows no message"),
        ("/message?queue=%ff&id=%ff", 404, r"there is no queue '\udcff'"),
        ("/queue", 400, "lacks"),
        ("/queue?name=q&state=dead", 400, "allowed are ready, delayed, unacked"),
        ("/?page=-1", 400, "allowed are numbers"),
        ("/?page=99999999999999999999", 400, "allowed are numbers"),
        ("/?page=%C2%B2", 400, "allowed are numbers"),
        ("/queue?name=q&page=1000000000", 200, "None."),
        ("/nonesuch", 404, "Not Found"),
        ("/static/../app.py", 404, ""),
        ("/static/%2e%2e/app.py", 404, ""),
    ],
)
def test_what_is_not_there_is_a_readable_page(page, channel, path, status, said):
    declare(channel, "q")
    answer = page.get(path)
    assert answer.status == status
    assert said in html.unescape(answer.text)


def test_a_broker_that_is_away_is_a_readable_page_until_it_is_back(own_server):
    with web_page(own_server.url()) as page:
        assert page.get("/").status == 200
        own_server.kill()
        for path in ("/", "/scheduled", "/consumers", "/dead-letters", "/search?q=x"):
            answer = page.get(path)
            assert answer.status == 503
            assert "The broker cannot be asked" in answer.text
            assert 'http-equiv="refresh"' in answer.text
        own_server.restart()
        assert page.get("/").status == 200


def test_a_broker_that_refuses_the_user_is_a_readable_page(own_server):
    with own_server.client() as client:
        client.acl_setuser(
            "viewer", enabled=True, passwords=["+secret-word"], commands=["+ping", "+hello", "+client"], keys=["*"]
        )
    url = own_server.url().replace("://", "://viewer:secret-word@")
    with web_page(url) as page:
        answer = page.get("/")
        assert answer.status == 503
        assert "secret-word" not in answer.text
        assert "The broker cannot be asked" in answer.text


def test_the_groups_and_limiters_of_a_queue_are_shown(page, channel):
    channel.queue_declare("q", durable=True, arguments={"x-group-concurrency": 1})
    publish(channel, "q", "x", "y", headers={"x-message-group": "customer <7>"})
    publish(channel, "q", "x", "y", "z", headers={"x-limiter": "stripe:1/h"})
    for _ in range(3):
        channel.basic_get("q")
    text = page.get("/queue", name="q").text
    assert re.search(r"customer &lt;7&gt;.*?<td[^>]*>1<.*?<td[^>]*>1<", text)
    assert re.search(r">stripe<.*?<td[^>]*>2<.*?20\d\d-", text)
