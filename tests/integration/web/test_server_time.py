"""No request of the web page, and no action on many messages, keeps the server busy for long: on a queue of 100,000 messages.

By the clock. `tests/integration/scripts/test_bounds.py` counts what calls look at, `test_bulk_actions.py` shows what actions do.
"""

from __future__ import annotations

import html
import os
import re
import threading

import pytest

from celery_redis_plus.cli.web.samples import Sampler
from tests.docs.terminal_recording import OPTIONS, Recording, live_system
from tests.support.slow_calls import MEDIAN_FROM, slow_calls
from tests.support.waiting import wait_until

#: Longest time that a call may take the server, and how often the page is tried on a machine that is busy otherwise.
MAX_US, TRIES = 5_000, 4
#: The threads that answer requests, and those of what goes on behind them.
THREADS = (
    "AnyIO",
    "celery-redis-plus-replay",
    "celery-redis-plus-deletion",
    "celery-redis-plus-move",
    "celery-redis-plus-cancellation",
    "celery-redis-plus-purge",
)
#: Messages of the queue, and those of shop.mail among them.
MESSAGES = 100_000
MAILS = MESSAGES // 20


def asks():
    return threading.current_thread().name.startswith((*THREADS, "celery-redis-plus-samples"))


def act(page, path, form, queue, shows, until):
    page.post(path, form, **queue)
    where = ("/dead-letters", {"queue": "orders"}) if "queue" in queue else ("/queue", {"name": "orders"})
    wait_until(
        lambda: until in page.get(where[0], **where[1]).text, 120, lambda: page.get(where[0], **where[1]).text, interval_s=0.2
    )
    assert shows in html.unescape(page.get(where[0], **where[1]).text)


def use(page):
    """Look at everything, and use every form."""
    paths = ["/", "/queue?name=orders&page=999", "/scheduled", "/dead-letters", "/dead-letters?queue=orders", "/consumers"]
    paths += [f"/queue?name=orders&state={state}" for state in ("ready", "delayed", "unacked")]
    paths += ["/queue?name=orders&task=shop.mail", "/queue?name=orders&text=none", "/?sort=name", "/running"]
    paths += ["/scheduled?task=shop.mail", "/dead-letters?queue=orders&order=oldest", "/dead-letters?queue=orders&error=none"]
    paths += ["/dead-letters/groups?queue=orders"]
    paths += [f"/confirm?queue=orders&task=shop.mail&action={action}" for action in ("cancel", "replay", "purge")]
    paths += ["/search?q=order-24", "/search?q=no-such-task"]
    message = html.unescape(re.search(r'href="(/message[^"]+)"', page.get("/queue", name="orders").text)[1])
    for _ in range(MEDIAN_FROM):
        for path in (*paths, message):
            assert page.get(path).status in {200, 303, 404}, path
        page.post("/queue/pause", {"reason": "the database moves"}, name="other")
        page.post("/queue/resume", name="other")
    by_name = {"name": "orders"}
    act(
        page,
        "/queue/move",
        {"task": "shop.mail", "to": "other"},
        by_name,
        f"{MAILS:,} are in queue 'other'",
        "The last move is over",
    )
    page.post("/queue/cancel", {"task": "shop.mail"}, name="other")
    wait_until(lambda: f"{MAILS:,} are cancelled" in page.get("/queue", name="other").text, 120, interval_s=0.2)
    by_queue = {"queue": "orders"}
    page.post("/queue/purge", name="other")
    message = [f"{one.tag} orders" for one in page.admin().list_messages("orders", "delayed")][:100]
    for path, form in (("run-now", {}), ("prioritize", {"priority": "9"}), ("move", {"to": "other"})):
        page.post(f"/messages/{path}", {"message": message, **form}, back="/scheduled")
    act(page, "/dead-letters/replay-many", {"task": "shop.*"}, by_queue, "2 are back to work", "The last replay is over")


@pytest.mark.weekly
@pytest.mark.timeout(600)
def test_no_request_keeps_the_server_busy_for_5_ms(page, broker_url, redis_client):
    always_slow = None
    for _ in range(TRIES):
        redis_client.flushdb()
        page.bulk.close()
        sampler = Sampler(page.samples, page.admin, interval_s=0.05)
        system = live_system(Recording(broker_url + OPTIONS, redis_client), redis_client, MESSAGES)
        with system, slow_calls(redis_client, MAX_US, asks) as found, sampler:
            use(page)
        assert min(found.calls[kind] for kind in ("queue_overview", "list_messages", "move_message", "cancel")) >= MEDIAN_FROM
        always_slow = set(found.slow) if always_slow is None else always_slow & set(found.slow)
        if not always_slow:
            return
    pytest.fail(f"these took the server over {MAX_US / 1000} ms in each of {TRIES} runs: {found.slow}; load {os.getloadavg()}")
