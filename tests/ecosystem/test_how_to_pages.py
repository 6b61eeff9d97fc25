"""The tutorial's pages and each how-to page, followed by a reader in a fresh environment: files, programs, commands.

`STORIES` has what a page takes for granted, and what it says that the reader will see. A page without one promises that its
programs and commands succeed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener, urlopen

import pytest
import yaml

from celery_redis_plus.keys import Keys
from tests.docs.blocks import ROOT, of_page
from tests.ecosystem.fresh_environment import FreshEnvironment
from tests.ecosystem.page_reader import FOLLOWER, PageReader, commands, followed
from tests.support.servers import new_server
from tests.support.waiting import wait_until

#: Pages that another test follows, and which.
ELSEWHERE = {
    "tutorial.md": "tests/ecosystem/test_tutorial.py",
    # Its lines with pip: the fixture `environment`.
    "install.md": "tests/ecosystem/test_how_to_pages.py",
    "demo.md": "tests/integration/demo",
}
#: Pages whose recordings, their blocks `console`, another test follows on a broker that it prepares.
RECORDED = {
    "command-line.md": "tests/docs/test_terminal_recording.py",
    "incidents.md": "tests/docs/test_incident_recording.py",
}
#: The reader's app where a page takes one for granted: that of First steps.
FIRST_STEPS = ROOT / "docs/usage.md"
Story = Callable[[PageReader], Iterator[None]]
STORIES: dict[str, Story] = {}


def pages() -> list[str]:
    """Return the tutorial's pages and the how-to pages, as the site lists them; and metrics.md."""
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    kinds = {name: part for one in navigation for name, part in one.items()}
    return [*_names(kinds["Tutorial"]), *_names(kinds["How-to guides"]), "metrics.md"]


def _names(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _names(one)


def story(page: str) -> Callable[[Story], Story]:
    def note(function: Story) -> Story:
        STORIES[page] = function
        return function

    return note


# ---- what pages take for granted and promise; `yield` stands for the page itself


@story("usage.md")
def first_steps(reader: PageReader) -> Iterator[None]:
    yield
    # The countdown is over.
    wait_until(lambda: "1 + 2 = 3" in reader.logs(), 60, reader.logs, interval_s=0.1)


@story("migration.md")
def migration(reader: PageReader) -> Iterator[None]:
    reader.replaced |= {"old:6379/0": f"127.0.0.1:{reader.server.port}/2", "new:6379/0": f"127.0.0.1:{reader.server.port}/3"}
    reader.take(followed(ROOT / "docs/migration.md")[0])
    with reader.server.client() as client:

        def pops() -> int:
            """Return how many of kombu's own workers wait for messages."""
            return sum(one["cmd"] == "brpop" for one in client.client_list())

        # The installation that is there: an old worker, and what publishers have sent.
        reader.run("pip install 'celery[redis]'")
        old = reader.serve(OLD_WORKER.format("old"), lambda: pops() == 1)
        publish = "python -c 'from shop import pay; pay.delay({}); pay.apply_async(({},), countdown=3600)'"
        reader.run(publish.format(1, 2))
        wait_until(lambda: client.hlen("unacked") == 1, 30, reader.logs)

        def stop_old() -> None:
            reader.run(publish.format(3, 4))
            reader.end(old)
            wait_until(lambda: not client.exists("celery", "unacked"), 30, lambda: client.keys("*"))

        def back_to_old() -> None:
            reader.end_all(" worker")
            reader.variables.pop("SHOP_BROKER")
            reader.serve(OLD_WORKER.format("back"), lambda: pops() == 1)

        # What the page says before the second and the third `--status`.
        steps = [lambda: reader.end_all("--follow"), stop_old, lambda: None]
        reader.before["SHOP_BROKER=plus celery -A shop redisplus migrate --status"] = lambda: steps.pop()() if steps else None
        # Both kinds of workers run at this point of the page.
        reader.before["celery -A shop inspect ping"] = lambda: reader.serve(OLD_WORKER.format("again"), lambda: pops() == 1)
        reader.before["SHOP_BROKER=plus celery -A shop redisplus migrate --reverse --dry-run"] = back_to_old
        yield
        assert "would be moved" in reader.output("SHOP_BROKER=plus celery -A shop redisplus migrate --dry-run")
        # Each ran once, wherever it was; those with a countdown are with the old worker again.
        wait_until(lambda: client.hlen("unacked") == 2, 30, reader.logs)
        assert [reader.logs().count(f"order {number} is paid") for number in (1, 2, 3, 4)] == [1, 0, 1, 0]


OLD_WORKER = "celery -A shop worker --concurrency 1 --hostname {}@%h"


@story("delayed-tasks.md")
def delayed_tasks(reader: PageReader) -> Iterator[None]:
    reader.before["celery -A shop inspect"] = lambda: reader.serve("celery -A shop worker --concurrency 1")
    yield
    listed = reader.output("celery-redis-plus scheduled --within 1h")
    assert ("shop.remind" in listed, "1 of 2 delayed messages" in listed) == (True, True), listed
    assert reader.output("celery -A shop inspect scheduled").count("Grace") >= 1


@story("priorities.md")
def priorities(reader: PageReader) -> Iterator[None]:
    yield
    wait_until(lambda: "order 1 is paid" in reader.logs(), 30, reader.logs)
    log = reader.logs()
    assert log.index("order 2 is paid") < log.index("order 1 is paid")


@story("lifecycle.md")
def lifecycle(reader: PageReader) -> Iterator[None]:
    reader.replaced["/var/lib/shop/archive"] = str(reader.folder / "archive")
    yield
    # What the page's own program has cancelled is finished.
    assert "finished messages moved" in reader.output("celery-redis-plus --app shop events archive")
    assert list((reader.folder / "archive").rglob("*.parquet"))


@story("dead-letters.md")
def dead_letters(reader: PageReader) -> Iterator[None]:
    def die() -> None:
        reader.before.clear()
        _declare(reader, "celery", "fixed")
        (reader.folder / "die.py").write_text(reader.here(DIE))
        reader.run("python die.py")
        shown = json.loads(reader.run("celery-redis-plus dead-letters list celery --json").splitlines()[0])
        reader.replaced["19a4d2f3b1c00000001.17k3x9"] = shown["tag"]

    reader.before["celery-redis-plus dead-letters list celery"] = die
    yield
    assert "rejected" in reader.output("celery-redis-plus dead-letters list celery")
    assert "1 dead letter(s) of queue 'celery' are back to work" in reader.output("celery-redis-plus dead-letters replay celery")
    assert "2 dead letter(s)" in reader.output("celery-redis-plus dead-letters replay --all")
    with reader.server.client() as client:
        assert client.zcard(Keys().queue("fixed").ready) == 2


DIE = """
from kombu import Connection, Queue
import celery_redis_plus

with Connection("redisplus://localhost:6379/0") as connection:
    channel = connection.channel()
    queue = Queue("celery")(channel)
    queue.declare()
    for number in range(3):
        connection.Producer().publish(number, routing_key="celery")
        queue.get().reject()
"""


@story("consumers.md")
def consumers(reader: PageReader) -> Iterator[None]:
    reader.serve("celery -A shop worker --concurrency 1")
    yield
    # The state is as of the last heartbeat.
    assert re.search("interested|notified", reader.output("celery-redis-plus consumers celery"))
    rows = reader.run("celery-redis-plus consumers celery").splitlines()[1:]
    assert sorted(int(row.split()[4]) for row in rows) == [0, 10], rows
    assert "is paused" in reader.output("celery-redis-plus pause celery")
    assert "goes on" in reader.output("celery-redis-plus resume celery")


@story("django.md")
def django(reader: PageReader) -> Iterator[None]:
    (reader.folder / "shop.py").unlink()
    yield
    wait_until(lambda: "order 1 is shipped" in reader.logs(), 30, reader.logs)
    with reader.server.client() as client:
        assert all(key.startswith(b"shop:") for key in client.keys("*queue*"))


@story("asyncio.md")
def fastapi(reader: PageReader) -> Iterator[None]:
    reader.port_of("uvicorn")
    yield
    for order in (1, 2):
        wait_until(lambda order=order: f"order {order} is shipped" in reader.logs(), 30, reader.logs)


@story("beat.md")
def beat(reader: PageReader) -> Iterator[None]:
    yield
    with reader.server.client() as client:
        assert client.exists("redbeat:refresh")
    wait_until(lambda: "redbeat" in reader.logs(), 30, reader.logs, interval_s=0.1)


@story("testing.md")
def own_tests(reader: PageReader) -> Iterator[None]:
    yield
    assert "1 passed" in reader.output("pytest")


@story("spark.md")
def spark(reader: PageReader) -> Iterator[None]:
    reader.before["celery-redis-plus events drop-reader"] = lambda: reader.run(
        "celery-redis-plus events archive --to archive --reader billing"
    )
    yield


@story("monitoring.md")
def monitoring(reader: PageReader) -> Iterator[None]:
    reader.run("python shop.py")
    yield
    # Its countdown of 5 s may be over.
    assert re.search(r'messages{queue="celery",state="(delayed|ready)"} 1.0', _page(reader, " exporter", "/metrics"))


@story("metrics.md")
def metrics(reader: PageReader) -> Iterator[None]:
    reader.run("python shop.py")
    yield
    assert "celery_redis_plus_up 1.0" in _page(reader, " exporter", "/metrics")


@story("flower.md")
def flower(reader: PageReader) -> Iterator[None]:
    reader.run("python shop.py")
    reader.before["celery --app shop flower"] = lambda: reader.variables.update(FLOWER_UNAUTHENTICATED_API="1")
    yield
    (queue,) = json.loads(_page(reader, " flower", "/api/queues/length"))["active_queues"]
    # "`messages` counts ready, delayed and unacked ones."
    assert (queue["name"], queue["messages"]) == ("celery", 1)


@story("troubleshooting.md")
def troubleshooting(reader: PageReader) -> Iterator[None]:
    reader.run("python shop.py")
    yield
    assert "celery" in reader.output("celery-redis-plus --app shop queues")


@story("security.md")
def security(reader: PageReader) -> Iterator[None]:
    yield
    assert "publisher" in reader.output("celery-redis-plus doctor --role publisher")


@story("command-line.md")
def command_line(reader: PageReader) -> Iterator[None]:
    # "Of queues that have them": events.
    app = reader.folder / "shop.py"
    app.write_text(app.read_text().replace('/0"))', '/0"), event_log=True)'))
    reader.run("python shop.py")
    yield
    queues = [reader.output(start) for start in QUEUES_THREE_TIMES]
    assert all(re.search(r"^celery +(0 +1|1 +0) ", printed, re.MULTILINE) for printed in queues), queues


QUEUES_THREE_TIMES = (
    "celery -A shop redisplus queues",
    "celery-redis-plus --app shop queues",
    "celery-redis-plus --broker redis",
)


@story("message-groups.md")
def message_groups(reader: PageReader) -> Iterator[None]:
    def declare() -> None:
        """Do what a worker of the page's app does at its start."""
        reader.before.clear()
        code = "from program import app\nfor queue in app.amqp.queues.values(): queue(app.connection().default_channel).declare()"
        (reader.folder / "declare.py").write_text(code)
        reader.run("python declare.py")

    reader.before["celery-redis-plus groups orders"] = declare
    yield
    assert "c7" in reader.output("celery-redis-plus groups orders c7 --concurrency 4")


@story("web.md")
def web(reader: PageReader) -> Iterator[None]:
    reader.run("python shop.py")
    # The command asks for a password.
    reader.replaced["celery-redis-plus web-user"] = "echo a-long-password | celery-redis-plus web-user"
    yield
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    (one,) = reader.serving
    link = re.search(r"http://\S+/login\?token=\S+", one.log)
    assert link
    with browser.open(link[0]) as logged_in:
        assert logged_in.status == 200
    with browser.open(link[0].partition("/login")[0]) as queues:
        assert "celery" in queues.read().decode()


@story("check.md")
def check(reader: PageReader) -> Iterator[None]:
    _declare(reader, "orders", prefix="shop:")
    yield


# ---- the test


def _declare(reader: PageReader, *queues: str, prefix: str = "") -> None:
    """Let the reader's app have declared queues."""
    names = ", ".join(f"kombu.Queue({name!r})(channel).declare()" for name in queues)
    url = f"redisplus://localhost:6379/0?global_keyprefix={prefix}"
    code = f"import celery_redis_plus, kombu; channel = kombu.Connection({url!r}).channel(); {names}"
    (reader.folder / "declare.py").write_text(reader.here(code))
    reader.run("python declare.py")


def _page(reader: PageReader, kind: str, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{reader.port_of(kind)}{path}", timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    """What the page Install makes of an empty environment, with the extras that pages name in their text."""
    fresh = FreshEnvironment(tmp_path_factory.mktemp("fresh"))
    # What builds the wheel; without it each line would install it again for itself.
    fresh.pip("pip install 'setuptools>=77'")
    fresh.variables["PIP_NO_BUILD_ISOLATION"] = "0"
    for block in followed(ROOT / "docs/install.md"):
        for line in commands(block):
            if line.startswith("pip "):
                fresh.pip(line)
    fresh.pip('pip install ".[metrics,parquet,testing,web]"')
    return fresh


@pytest.fixture
def reader(environment: FreshEnvironment, tmp_path: Path) -> Iterator[PageReader]:
    with new_server() as server:
        one = PageReader(environment, server, tmp_path)
        yield one
        one.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in pages() if page not in ELSEWHERE])
def test_a_reader_does_what_the_page_says(reader: PageReader, page: str) -> None:
    reader.take(followed(FIRST_STEPS)[0])
    path = ROOT / "docs" / page
    told = STORIES[page](reader) if page in STORIES else iter((None,))
    next(told)
    # Its recordings are followed on a broker of their own.
    reader.follow(path, ("python", "ini", "bash") if page in RECORDED else ("python", "ini", "bash", "console"))
    assert next(told, "the end") == "the end"
    reader.end_all()


def test_what_is_not_followed_has_a_reason() -> None:
    """Each block is followed here, or is marked with the test that runs it, or with what this machine lacks."""
    for page in pages():
        for block in of_page(ROOT / "docs" / page):
            assert block.reason or block.language in {"python", "ini", "bash", "console", "text", "yaml"}, block
            if FOLLOWER not in block.reason:
                assert all((ROOT / named).exists() for named in re.findall(r"tests/[\w/]+(?:\.py)?", block.reason)), block
    assert all((ROOT / named).exists() for named in (*ELSEWHERE.values(), *RECORDED.values()))
    assert set(STORIES) <= set(pages())
