"""docs/migration.md, step by step: each of its commands, with real workers of both kinds, under traffic, and back."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections import Counter

import pytest
from celery import Celery
from markdown_it import MarkdownIt

from celery_redis_plus import configure_app
from tests.docs.blocks import ROOT
from tests.support.apps import plain_url
from tests.support.fork_server import python_path
from tests.support.waiting import wait_until
from tests.support.workers import Worker

PAGE = ROOT / "docs/migration.md"
NOTES_DB = 2
ETAS = 5
#: Headings with commands that another test runs, or none.
ELSEWHERE = {"To another server or prefix": "tests/ecosystem/test_how_to_pages.py"}
NOT_RUN = {"From RabbitMQ"}
#: What the test adds to the page's app.
TASK = """

import redis

notes = redis.Redis.from_url({url!r})


@app.task(name="shop.note", ignore_result=True)
def note(name):
    notes.rpush("ran", name)


app.conf.broker_connection_retry_on_startup = True
"""


def sections():
    """Return (heading, language, code) of the page's blocks, in their order."""
    found, heading = [], ""
    tokens = MarkdownIt().parse(PAGE.read_text())
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.type == "heading_open":
            heading = token.content
        elif token.type == "fence":
            found.append((heading, token.info.split()[0], token.content))
    return found


class Shop:
    """The page's app, its workers, and its commands."""

    def __init__(self, server, folder):
        self.server, self.folder, self.workers, self.running = server, folder, [], []
        self.env = {**os.environ, "C_FORCE_ROOT": "1"}
        self.env["PYTHONPATH"] = python_path(self.env)
        self.notes = server.client(NOTES_DB)
        (code,) = [code for _, language, code in sections() if language == "python"]
        notes_url = plain_url(server.url(), NOTES_DB)
        (folder / "shop.py").write_text(self.here(code) + TASK.format(url=notes_url))
        self.outputs = []

    def here(self, text):
        """Return a text of the page with the address of the test's server."""
        return text.replace("localhost:6379", f"127.0.0.1:{self.server.port}")

    def worker(self, name, **env):
        worker = Worker("shop", self.folder, name=name, env=env, cwd=self.folder, concurrency=2, quiet=False)
        self.workers.append(worker.start())
        return worker

    def run(self, heading):
        """Run the commands under a heading; those that go on are left running."""
        blocks = [code for found, language, code in sections() if found == heading and language == "bash"]
        assert blocks, heading
        for line in "".join(blocks).splitlines():
            self._run_line(self.here(line))

    def _run_line(self, line):
        words = shlex.split(line)
        if words[0] == "export":
            self.env.update(word.split("=") for word in words[1:])
            return
        settings = dict(word.split("=") for word in words if re.match(r"[A-Z_]+=", word))
        program, *arguments = words[len(settings) :]
        if arguments[-1] == "worker":
            self.worker("new", **settings)
            return
        module = {"celery": "celery", "celery-redis-plus": "celery_redis_plus"}[program]
        command, env = [sys.executable, "-m", module, *arguments], {**self.env, **settings}
        if "--follow" in arguments:
            with (self.folder / "follow.log").open("ab") as log:
                self.running.append(subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log))
            return

        def succeeds():
            ended = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=60, check=False)
            self.outputs.append((line, ended.stdout))
            # A busy machine may not answer a ping within Celery's second.
            return ended.returncode == 0 or (
                "inspect" not in arguments and pytest.fail(f"{line}\n{ended.stderr}\n{ended.stdout}")
            )

        wait_until(succeeds, 60, line)

    def output(self, ending):
        """Return what the last command printed that ends so."""
        return next(printed for line, printed in reversed(self.outputs) if line.endswith(ending))

    def end_follow(self):
        follow = self.running.pop()
        follow.terminate()
        assert follow.wait(30) == 0, (self.folder / "follow.log").read_text()

    def close(self):
        for process in self.running:
            process.kill()
            process.wait()
        for worker in self.workers:
            worker.kill()


class Traffic(threading.Thread):
    """Publishes tasks until it is stopped; `app` may be changed meanwhile, as publishers are switched."""

    def __init__(self, app):
        super().__init__(daemon=True)
        self.app, self.sent, self.stopping = app, 0, threading.Event()

    def run(self):
        while not self.stopping.wait(0.05):
            self.app.send_task("shop.note", (f"task-{self.sent}",))
            self.sent += 1


@pytest.fixture
def shop(own_server, tmp_path):
    one = Shop(own_server, tmp_path)
    yield one
    one.close()


def test_the_guide_loses_and_repeats_nothing_there_and_back(shop):
    before = Celery("before", broker=shop.server.url(scheme="redis"), set_as_current=False)
    after = configure_app(Celery("after", broker=shop.server.url(), set_as_current=False))
    broker = shop.server.client()
    old = shop.worker("old")
    traffic = Traffic(before)
    traffic.start()
    for number in range(ETAS):
        before.send_task("shop.note", (f"far-{number}",), countdown=3600)
    wait_until(lambda: broker.hlen("unacked") >= ETAS)

    shop.run("Step 2: start new workers")
    assert "KOMBU SCHEDULED" in shop.output("--status")
    shop.run("Step 3: let messages follow")
    shop.run("While both kinds of workers run")
    pings = [printed for line, printed in shop.outputs if line.endswith("inspect ping")]
    assert ("old@" in pings[0], "new@" in pings[0]) == (True, False)
    assert ("old@" in pings[-1], "new@" in pings[-1]) == (False, True)

    # Step 4.
    traffic.app = after
    assert old.stop() == 0
    wait_until(lambda: not broker.exists("celery", "unacked"), 30)
    shop.run("Step 5: stop the old workers")
    (row,) = [line.split() for line in shop.output("--status").splitlines() if line.startswith("celery ")]
    assert row[1:4] == ["0", "0", "0"]
    shop.end_follow()
    shop.run("Step 6: end the command")
    assert broker.zcard("delayed:{celery}") == ETAS

    # Back, under traffic as well.
    shop.worker("old-again")
    traffic.app = before
    for number in range(ETAS):
        after.send_task("shop.note", (f"back-{number}",), countdown=10)
    assert shop.workers[1].stop() == 0
    shop.run("Going back")
    traffic.stopping.set()
    traffic.join()
    names = {f"task-{number}" for number in range(traffic.sent)}
    names |= {f"back-{number}" for number in range(ETAS)}

    def ran():
        return Counter(name.decode() for name in shop.notes.lrange("ran", 0, -1))

    wait_until(lambda: names <= ran().keys(), 60, lambda: sorted(names - ran().keys()))
    assert ran().keys() == names
    assert set(ran().values()) == {1}
    # The old worker holds those of the first half, as at the beginning.
    assert broker.hlen("unacked") == ETAS


def test_the_other_commands_of_the_page_run(shop):
    shop.worker("new", SHOP_BROKER="plus").stop()
    for heading in ("The command", "From another server or database", "Tasks that old workers have"):
        shop.run(heading)
    shop.end_follow()


def test_every_command_of_the_page_is_run():
    headings = {heading for heading, language, _ in sections() if language == "bash"}
    assert headings == {
        "Step 2: start new workers", "Step 3: let messages follow", "Step 5: stop the old workers", "Step 6: end the command",
        "While both kinds of workers run", "The command", "From another server or database", "Tasks that old workers have",
        "Going back", *ELSEWHERE, *NOT_RUN,
    }  # fmt: skip
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())
