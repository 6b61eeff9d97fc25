"""The web page on a broker of 500 queues, 100,000 waiting and 5,000 dead messages, through a failover; and axe-core's rules."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from urllib.parse import urlencode

import kombu
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys as Key

from celery_redis_plus.admin.shard_admin import admin_of_url
from celery_redis_plus.keys import Keys
from tests.browser.conftest import served
from tests.browser.test_web_page import DO_IT, log_in
from tests.support.filling import fill
from tests.support.inbox import Inbox, declare, publish
from tests.support.sentinels import sentinel_deployment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
QUEUES, WAITING, DELAYED, DEAD = 500, 100_000, 10_000, 5_000
WIDTHS = (360, 1_280, 2_560)
TASKS = ("shop.pay", "shop.mail", "shop.refund")


@pytest.fixture(scope="module")
def large(browser):
    """A broker with a replica and Sentinels; yields the deployment and the page's address, logged in."""
    with sentinel_deployment() as deployment, kombu.Connection(deployment.url()) as connection:
        channel = connection.channel()
        declare(channel, *(f"team{number:03}" for number in range(QUEUES - 1)), "orders")
        of, client = Keys().queue("orders"), deployment.client()
        for number, task in enumerate(TASKS):
            publish(channel, "orders", number, headers={"task": task, "id": f"dead-{number}", "argsrepr": f"({number},)"})
        inbox = Inbox(channel, "orders", ack=False)
        inbox.drain(len(TASKS))
        for message in inbox.messages:
            message.reject()
        inbox.cancel()
        wait_until(lambda: client.zcard(of.dead) == len(TASKS))
        fill(client, of, of.dead, DEAD)
        for number, task in enumerate(TASKS):
            publish(channel, "orders", number, headers={"task": task, "id": f"ready-{number}", "argsrepr": f"({number},)"})
            headers = {"task": task, "id": f"later-{number}", "x-delay": 3_600_000}
            publish(channel, "orders", number, headers=headers)
        fill(client, of, of.ready, WAITING)
        fill(client, of, of.delayed, DELAYED)
        # The replica has all of it before a busy machine lets the Sentinels promote it.
        assert client.wait(1, 30_000) == 1
        deployment.wait_until_whole()
        with served(deployment.url(), sampled=True) as url:
            log_in(browser, url)
            yield deployment, url
        browser.open("about:blank")


@pytest.fixture
def user(browser, large):
    browser.base = large[1].partition("/login")[0]
    browser.look(width=1_280, height=900)
    return browser


class Hand:
    """A user who works by mouse, or by the keyboard alone."""

    def __init__(self, browser, *, keys):
        self.browser, self.keys = browser, keys

    def press(self, css):
        """Press a button or a link, or tick a box."""
        self._press(self.browser.find(css))

    def _press(self, element):
        if not self.keys:
            self.browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            ActionChains(self.browser.driver).click(element).perform()
            return
        self._reach(element)
        key = Key.SPACE if element.get_attribute("type") == "checkbox" else Key.ENTER
        ActionChains(self.browser.driver).send_keys(key).perform()

    def open(self, text):
        """Open the detail with this summary."""
        self.press_text("summary", text)

    def press_text(self, css, text):
        """Press the element that shows a text."""
        self._press(next(one for one in self.browser.driver.find_elements("css selector", css) if one.text == text))

    def type(self, css, text):
        """Fill in a field."""
        element = self.browser.find(css)
        if self.keys:
            self._reach(element)
        else:
            self._press(element)
        ActionChains(self.browser.driver).key_down(Key.CONTROL).send_keys("a").key_up(Key.CONTROL).send_keys(text).perform()

    def _reach(self, element):
        """Press Tab until the element has the focus, and see that this is shown."""
        for _ in range(400):
            if self.browser.driver.switch_to.active_element == element:
                shown = "const s = getComputedStyle(arguments[0]); return s.outlineStyle !== 'none' || s.boxShadow !== 'none'"
                assert self.browser.driver.execute_script(shown, element), "the focus is not to be seen"
                return
            ActionChains(self.browser.driver).send_keys(Key.TAB).perform()
        pytest.fail(f"Tab does not reach {element.get_attribute('outerHTML')}")


def open_page(user, path, **parameters):
    user.open(f"{user.base}{path}?{urlencode(parameters)}")


@pytest.fixture(params=["mouse", "keyboard"])
def hand(user, request):
    return Hand(user, keys=request.param == "keyboard")


@pytest.fixture
def admin(large):
    with admin_of_url(large[0].url(), {}) as found:
        yield found
        # What a page has said while the server was away.
    large[0].wait_until_whole()


def test_one_message_gets_another_priority_runs_now_moves_and_is_cancelled(user, hand, admin):
    later = next(admin.list_messages("orders", "delayed"))
    open_page(user, "/message", queue="orders", id=later.tag)
    hand.open("Priority…")
    hand.type("input[name=priority]", "200")
    hand.press("button[formaction^='/messages/prioritize']")
    user.wait_for("The message is given priority 200.")
    hand.press("button[formaction^='/messages/run-now']")
    user.wait_for("The message is ready.")
    assert next(admin.list_messages("orders", "ready")).tag == later.tag
    hand.open("Move…")
    hand.type("input[name=to]", "team001")
    hand.press("button[formaction^='/messages/move']")
    user.wait_for("The message is in queue 'team001'.")
    hand.open("Cancel…")
    hand.press("button[formaction^='/messages/cancel']")
    user.wait_for("The message is cancelled.")


def test_ticked_messages_run_now_and_are_taken_back(user, hand, admin, large):
    before = admin.overview_of("orders").delayed
    open_page(user, "/scheduled", queue="orders", task="shop.mail")
    user.wait_for("found among messages 1 to 5,000 of")
    hand.press("tbody input[type=checkbox]")
    hand.press("button[formaction^='/messages/run-now']")
    user.wait_for("The message is ready.")
    assert admin.overview_of("orders").delayed == before - 1
    with kombu.Connection(large[0].url()) as connection:
        held = Inbox(connection.channel(), "team000", ack=False)
        publish(connection.channel(), "team000", "runs", headers={"task": "shop.long", "id": "runs-1"})
        held.drain(1)
        open_page(user, "/running")
        user.wait_for("shop.long")
        hand.press("tbody input[type=checkbox]")
        hand.open("Take back…")
        hand.press("button[formaction^='/messages/kick']")
        user.wait_for("The message is back in its queue.")
    admin.purge("team000")


def test_dead_letters_of_an_error_are_replayed_and_one_is_deleted(user, hand, admin):
    open_page(user, "/dead-letters/groups", queue="orders")
    user.wait_for("shop.refund")
    hand.press("tbody a")
    wait_until(lambda: "task=shop." in user.path)
    dead = admin.overview_of("orders").dead
    hand.press("form[action='/confirm'] button[value=replay]")
    user.wait_for("back to work?")
    hand.press(DO_IT)
    user.wait_for("is over")
    assert admin.overview_of("orders").dead < dead
    open_page(user, "/dead-letters", queue="orders")
    hand.press("tbody input[type=checkbox]")
    hand.open("Delete…")
    hand.press("div.bar button.danger[formaction]")
    user.wait_for("1 of 1 dead letters are deleted")


def test_many_are_counted_cancelled_and_stopped_and_a_queue_is_paused(user, hand, admin):
    open_page(user, "/queue", name="orders", state="ready")
    hand.open("Many at once…")
    hand.type("details[data-many] input[name=task]", "shop.mail")
    hand.press("details[data-many] button[value=cancel]")
    user.wait_for("for good?")
    hand.press(DO_IT)
    user.wait_for("The cancellation goes on")
    hand.press("form[action^='/stop'] button")
    user.wait_for("It is stopped. Another one does the rest.")
    hand.open("Pause…")
    hand.type("input[name=reason]", "tests")
    hand.press("form[action^='/queue/pause'] button")
    user.wait_for("Paused: tests")
    hand.press("form[action^='/queue/resume'] button")
    user.wait_for("Queue 'orders' goes on.")


def test_the_switches_show_local_times_and_stop_reloading(user, hand, admin):
    open_page(user, "/queue", name="orders")
    for first, second in (("Show local times", "Show UTC"), ("Stop reloading", "Reload every few seconds")):
        for text, then in ((first, second), (second, first)):
            hand.press_text(".switches button", text)
            user.wait_for(then)


#: The names of the queues on the page that have a ready message.
QUEUES_NOW = """return [...document.querySelectorAll("tbody tr")]
  .filter((row) => row.querySelector("[data-label=Ready]").textContent.trim() !== "0")
  .map((row) => row.querySelector("a").textContent)"""


def publish_one(deployment):
    """Publish to a queue whose figure the open page then shows."""
    with kombu.Connection(deployment.url()) as connection:
        publish(connection.channel(), "team002", "after")


def test_an_open_page_outlives_a_failover_and_acts_after_it(user, admin, large):
    deployment, _ = large
    deployment.wait_until_whole()
    open_page(user, "/", sort="ready", name="team")
    user.wait_for("team001")
    user.run("document.body.dataset.mark = 'same page'")
    was = deployment.kill_master()
    # It may turn grey meanwhile, or wait for the new master's answer.
    deployment.wait_for_promotion(was)
    publish_one(deployment)
    wait_until(lambda: not user.find("aside").is_displayed() and "team002" in user.run(QUEUES_NOW), timeout_s=60)
    assert user.run("return document.body.dataset.mark") == "same page"
    open_page(user, "/queue", name="orders")
    hand = Hand(user, keys=False)
    hand.open("Pause…")
    hand.type("input[name=reason]", "after")
    hand.press("form[action^='/queue/pause'] button")
    user.wait_for("Paused: after")
    hand.press("form[action^='/queue/resume'] button")
    user.wait_for("Queue 'orders' goes on.")
    assert {entry.action for entry in admin.audit.entries()} >= {"pause", "resume"}


def axe():
    """Return axe-core's source: of the package of tox's environment."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or not found.submodule_search_locations:
        pytest.skip("axe-core is not installed: tox -e browser")
    return Path(found.submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_at_any_width(user, large, scheme):
    source = axe()
    with admin_of_url(large[0].url(), {}) as admin:
        tags = {state: next(admin.list_messages("orders", state)).tag for state in ("ready", "delayed", "dead")}
    pages = [
        ("/", {}), ("/queue", {"name": "orders"}), ("/queue", {"name": "orders", "state": "delayed"}), ("/running", {}),
        ("/scheduled", {}), ("/dead-letters", {}), ("/dead-letters", {"queue": "orders"}),
        ("/dead-letters/groups", {"queue": "orders"}), ("/confirm", {"queue": "orders", "action": "purge"}), ("/consumers", {}),
        ("/search", {"q": "none"}), *(("/message", {"queue": "orders", "id": tag}) for tag in tags.values()),
    ]  # fmt: skip
    found = []
    for width in WIDTHS:
        user.look(scheme=scheme, width=width, height=900)
        for path, parameters in pages:
            open_page(user, path, **parameters)
            user.driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
            user.driver.execute_script(source)
            violations = user.driver.execute_async_script("axe.run().then((r) => arguments[arguments.length - 1](r.violations))")
            found += [(width, path, one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in violations]
            assert user.run("return document.documentElement.scrollWidth") <= width, (width, path)
    user.complaints()
    assert found == [], json.dumps(found, indent=1)
