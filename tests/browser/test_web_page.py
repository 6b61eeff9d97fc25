"""The web page in a real browser: `tox -e browser`; with `-- --write-screenshots` it writes the pictures of docs/web.md."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from tests.browser.conftest import DEAD, FLOOD, served
from tests.docs.blocks import ROOT
from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until

#: A picture in the docs may be so large.
MAX_PICTURE_BYTES = 120_000
PHONE = 360
LONG_NAME = "reports." + "very-long-name-without-a-space" * 4


@pytest.fixture
def user(browser, login_url):
    """The browser, logged in, with the first page before it."""
    log_in(browser, login_url)
    yield browser
    assert browser.complaints() == []


@pytest.fixture
def operator(browser, incident_url):
    """The same, on a broker with four faults."""
    log_in(browser, incident_url)
    yield browser
    assert browser.complaints() == []


def log_in(browser, url):
    # What the page of the test before has said, whose server is gone, counts no more.
    browser.open("about:blank")
    browser.complaints()
    browser.driver.delete_all_cookies()
    browser.look()
    browser.open(url)
    wait_until(lambda: browser.path == "/")
    browser.base = url.partition("/login")[0]


def many_at_once(user, path, action, **fields):
    """Choose many messages on a page, and what shall become of them; the page then counts, and asks."""
    user.open(user.base + path)
    if path.startswith("/queue"):
        user.click("details[data-many] > summary")
        form = "details[data-many] form"
    else:
        form = "form.filter"
    for name, value in fields.items():
        user.find(f"{form} input[name={name}]").send_keys(value)
    if fields and not path.startswith("/queue"):
        user.click("form.filter button")
        wait_until(lambda: f"{next(iter(fields))}=" in user.path)
    user.click(f"form[action='/confirm'] button[value={action}]")


#: The button that does it, on the page that asks.
DO_IT = "main form[method=post] button"


def test_the_login_url_leads_to_the_queues_and_its_cookie_is_out_of_reach_of_scripts(user):
    assert "orders" in user.text
    assert user.run("return document.cookie") == ""
    (cookie,) = user.driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_without_the_login_there_is_only_its_form(browser, login_url):
    browser.driver.delete_all_cookies()
    browser.open(login_url.partition("/login")[0])
    assert "orders" not in browser.text
    browser.find("input[name=token]").send_keys(login_url.partition("token=")[2])
    browser.click("main button")
    browser.wait_for("invoices")
    # Chromium says that the page was refused at first.
    assert [one for one in browser.complaints() if "401" not in one] == []


def test_replay_puts_ticked_dead_letters_back_to_work(user, broker_url):
    user.click(f"td a.danger[href='/dead-letters?{urlencode({'queue': 'orders'})}']")
    user.wait_for(f"{DEAD} in all")
    user.click("input[data-all]")
    user.find("tbody input[type=checkbox]").click()
    user.click("div.bar > button")
    user.wait_for(f"{DEAD - 1} of {DEAD - 1} dead letters are back to work")
    user.wait_for("1 in all")
    with BrokerAdmin(broker_url) as admin:
        assert admin.overview_of("orders").dead == 1
        assert admin.counters("orders").replayed == DEAD - 1


def test_all_of_a_task_are_replayed_with_progress(user, broker_url):
    many_at_once(user, "/dead-letters?queue=orders", "replay", task="shop.*")
    user.wait_for(f"Put {DEAD} dead letters back to work?")
    user.click(DO_IT)
    user.wait_for(f"{DEAD} are back to work")
    user.wait_for("is over")
    # Nothing more is to be seen.
    wait_until(lambda: not user.run("return document.body.dataset.refresh"))
    with BrokerAdmin(broker_url) as admin:
        assert admin.overview_of("orders").dead == 0


def test_delete_asks_first(user, broker_url):
    user.open(user.base + "/dead-letters?queue=orders")
    user.click("tbody input[type=checkbox]")
    assert not user.find("div.bar button.danger").is_displayed()
    user.click("div.bar summary")
    user.click("div.bar button.danger")
    user.wait_for("1 of 1 dead letters are deleted")
    with BrokerAdmin(broker_url) as admin:
        assert admin.overview_of("orders").dead == DEAD - 1


def test_all_dead_letters_of_a_reason_are_deleted_behind_a_second_click(user, broker_url):
    many_at_once(user, "/dead-letters?queue=orders", "delete", reason="rejected")
    user.wait_for(f"Delete {DEAD} dead letters for good?")
    user.click(DO_IT)
    user.wait_for(f"{DEAD} are deleted")
    user.wait_for("0 in all")
    with BrokerAdmin(broker_url) as admin:
        assert admin.overview_of("orders").dead == 0


def test_all_waiting_messages_of_a_task_are_moved(user, broker_url):
    many_at_once(user, "/queue?name=orders", "move", task="tenant7.*", to="invoices")
    user.wait_for(f"Move {FLOOD - DEAD} messages?")
    user.click(DO_IT)
    user.wait_for(f"{FLOOD - DEAD} are in queue 'invoices'")
    with BrokerAdmin(broker_url) as admin:
        assert (admin.overview_of("orders").ready, admin.overview_of("invoices").ready) == (0, 40 + FLOOD - DEAD)


def test_all_waiting_messages_of_a_task_are_cancelled_behind_a_second_click(user, broker_url):
    many_at_once(user, "/queue?name=mails", "cancel", task="shop.remind")
    user.wait_for("Cancel 3 messages for good?")
    user.click(DO_IT)
    user.wait_for("3 are cancelled")
    with BrokerAdmin(broker_url) as admin:
        assert admin.overview_of("mails").delayed == 0


def test_a_move_without_a_task_or_to_an_unknown_queue_is_refused(user, broker_url):
    many_at_once(user, "/queue?name=orders", "move", to="invoices")
    user.wait_for("The form lacks the task")
    many_at_once(user, "/queue?name=orders", "move", task="tenant7.*", to="nonesuch")
    user.wait_for("there is no queue 'nonesuch'")
    # Chromium tells of the status.
    assert [one for one in user.complaints() if "404" not in one and "400" not in one] == []
    with BrokerAdmin(broker_url) as admin:
        assert admin.overview_of("orders").ready == FLOOD - DEAD


def test_an_operator_sees_the_four_faults_of_a_night_and_mends_three_of_them(operator, broker_url):
    """docs/incidents.md in a browser. The fourth is ended where it runs."""
    for text in ("paused", "3,020", "120"):
        assert text in operator.text
    operator.open(operator.base + "/consumers")
    frozen = next(row for row in operator.text.splitlines() if row.startswith("mails"))
    assert "min ago" in frozen

    operator.open(operator.base + "/queue?name=invoices")
    operator.click("form[action^='/queue/resume'] button")
    operator.wait_for("Queue 'invoices' goes on.")
    many_at_once(operator, "/queue?name=orders", "move", task="tenant7.*", to="bulk")
    operator.click(DO_IT)
    operator.wait_for("3,000 are in queue 'bulk'")
    many_at_once(operator, "/dead-letters?queue=orders", "replay")
    operator.click(DO_IT)
    operator.wait_for("120 are back to work")

    with BrokerAdmin(broker_url) as admin:
        assert {one.queue: (one.ready, one.dead, one.paused) for one in admin.overview("bulk", "invoices", "orders")} == {
            "bulk": (3_000, 0, None), "invoices": (40, 0, None), "orders": (140, 0, None),
        }  # fmt: skip


def test_the_messages_of_a_task_are_found(user):
    user.open(user.base + "/queue?name=orders")
    user.find("form.filter input[name=task]").send_keys("tenant*")
    user.click("form.filter button")
    user.wait_for("the first 100 of this task among messages 1 to")
    user.open(user.base + "/queue?name=orders&task=shop.*")
    user.wait_for("0 of this task")


def test_a_queue_is_paused_with_a_reason_and_resumed(user, broker_url):
    user.open(user.base + "/queue?name=mails")
    user.click("details summary")
    user.find("input[name=reason]").send_keys("<b>maintenance</b>")
    user.click("details button")
    user.wait_for("Paused: <b>maintenance</b>")
    user.click("form[action^='/queue/resume'] button")
    user.wait_for("Queue 'mails' goes on.")
    with BrokerAdmin(broker_url) as admin:
        assert admin.paused("mails") is None


def test_figures_are_loaded_again_but_not_while_a_form_is_open(user, connect):
    user.open(user.base + "/queue?name=mails")
    user.run("document.body.dataset.mark = 'same page'")
    publish(connect().channel(), "mails", "x")
    user.wait_for("ready 1")
    assert user.run("return document.body.dataset.mark") == "same page"
    user.click("details summary")
    user.find("input[name=reason]").send_keys("typing")
    user.run("refresh()")
    assert user.find("input[name=reason]").get_attribute("value") == "typing"


def test_hostile_texts_run_nothing(user, connect):
    publish(connect().channel(), "<script>document.title = 'owned'</script>", "<img src=x onerror=\"document.title='owned'\">")
    user.open(user.base)
    user.wait_for("<script>")
    user.driver.find_element("link text", "<script>document.title = 'owned'</script>").click()
    user.click("tbody a")
    user.wait_for("onerror")
    assert "owned" not in user.driver.title.replace("document.title = 'owned'", "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone(user, scheme, connect):
    declare(connect().channel(), LONG_NAME)
    user.look(scheme=scheme, width=PHONE, height=740)
    user.open(user.base + "/dead-letters?queue=orders")
    message = user.find("tbody a").get_attribute("href")
    paths = [
        "/",
        "/queue?name=orders",
        f"/queue?{urlencode({'name': LONG_NAME})}",
        "/scheduled",
        "/dead-letters",
        "/consumers",
        "/search",
    ]
    for url in [*(user.base + path for path in paths), user.base + "/dead-letters?queue=orders", message]:
        user.open(url)
        assert user.run("return document.documentElement.scrollWidth") <= PHONE, url


def test_an_open_page_outlives_a_broker_that_is_away(browser, own_server):
    with kombu.Connection(own_server.url()) as connection, served(own_server.url()) as url:
        declare(connection.default_channel, "orders")
        log_in(browser, url)
        browser.wait_for("orders")
        own_server.kill()
        browser.wait_for("The broker cannot be asked")
        assert "orders" in browser.text
        assert browser.run("return getComputedStyle(document.querySelector('main')).opacity") == "0.5"
        own_server.restart()
        wait_until(lambda: not browser.find("aside").is_displayed())
        assert browser.run("return getComputedStyle(document.querySelector('main')).opacity") == "1"
        # The server keeps nothing on disk, so these are new figures.
        assert "No queue here" in browser.text
        browser.complaints()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_have_enough_contrast(user, scheme):
    """Text on its background has the ratio 4.5 of WCAG 2.1 AA."""
    user.look(scheme=scheme)
    for path in ("/", "/dead-letters?queue=orders", "/queue?name=invoices"):
        user.open(user.base + path)
        assert user.run(LOW_CONTRAST) == [], path


LOW_CONTRAST = """
const parts = (color) => color.match(/[\\d.]+/g).map(Number);
const light = (color) => parts(color).slice(0, 3).map((c) => c / 255)
  .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (one) => {
  for (; one; one = one.parentElement) {
    const color = getComputedStyle(one).backgroundColor;
    if (parts(color)[3] !== 0) return color;
  }
  return "rgb(255, 255, 255)";
};
return [...document.querySelectorAll("body *")].filter((one) => {
  const hasText = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!hasText || !one.getClientRects().length) return false;
  const [a, b] = [light(getComputedStyle(one).color), light(behind(one))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
}).map((one) => one.outerHTML.slice(0, 200));
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_are_small_and_differ_in_light_and_dark(user, scheme, request, tmp_path):
    user.look(scheme=scheme, width=1100, height=350)
    folder = ROOT / "docs" if request.config.getoption("--write-screenshots") else tmp_path
    user.open(user.base)
    user.wait_for(f"{FLOOD - DEAD:,}")
    take_picture(user, scheme, Path(folder, f"web-{scheme}.png"))
    user.look(scheme=scheme, width=1100, height=560)
    user.open(user.base + "/dead-letters?queue=orders&task=shop.*")
    take_picture(user, scheme, Path(folder, f"web-dead-{scheme}.png"))


def take_picture(user, scheme, path):
    dark = user.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    assert dark == (scheme == "dark")
    picture = user.screenshot()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < MAX_PICTURE_BYTES
    path.write_bytes(picture)
