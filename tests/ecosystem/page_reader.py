"""A reader who does only what a page says: saves its files, runs its programs and commands, one after the other.

What the reader knows besides: the address of a server, and that a second program on a port needs another port.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs.blocks import Block, of_page
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from celery_redis_plus.testing.server import EmbeddedServer
    from tests.ecosystem.fresh_environment import FreshEnvironment

#: Who follows the pages; a block that is marked as not run names it where it is for the reader only.
FOLLOWER = "tests/ecosystem/test_how_to_pages.py"
ADDRESS = "localhost:6379"
#: The first line of a block with a file's name.
FILE = re.compile(r"# ([\w/]+\.(?:py|ini))\n")
#: What a line has that starts a program which runs until it is ended.
SERVING = (" worker", " beat", " exporter", " web", " flower", "uvicorn", "--follow", "events tail", "--watch")
#: Lines with such a word that end by themselves.
NOT_SERVING = re.compile(r" inspect | --role ")
#: The ports of those that listen.
PORTS = {" exporter": "9808", " web": "9809", " flower": "5555", "uvicorn": "8000"}
ENDED = (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT, 128 + signal.SIGTERM)
#: `doctor` finds danger on a server that keeps nothing on disk; `uninstall` asks, and there is no terminal.
STATUSES = {" doctor": (0, 1), " uninstall": (0, 2)}


@dataclass
class Serving:
    """A program in a terminal of its own."""

    command: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


@dataclass
class PageReader:
    """Follows one page.

    Attributes:
        replaced: texts of the page, and what this machine has instead.
        before: called before a command that begins so.
        printed: what each command printed that has ended.
    """

    environment: FreshEnvironment
    server: EmbeddedServer
    folder: Path
    replaced: dict[str, str] = field(default_factory=dict)
    before: dict[str, Callable[[], object]] = field(default_factory=dict)
    printed: list[tuple[str, str]] = field(default_factory=list)
    serving: list[Serving] = field(default_factory=list)
    #: Files that the page gave.
    given: set[str] = field(default_factory=set)
    variables: dict[str, str] = field(default_factory=dict)

    def follow(self, page: Path, languages: tuple[str, ...] = ("python", "ini", "bash", "console")) -> None:
        """Do what a page says, from its top to its end."""
        for block in followed(page):
            if block.language not in languages:
                continue
            if block.language in ("bash", "console"):
                for line in commands(block):
                    self.run(line)
            else:
                self.take(block)

    def take(self, block: Block) -> None:
        """Save a block under its name; run one without a name."""
        code, named = self.here(block.code), FILE.match(block.code)
        if named is None:
            assert block.language == "python", f"{block} needs the name of its file"
            (self.folder / "program.py").write_text(code)
            self.run("python program.py")
            return
        path = self.folder / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        # What another program wrote, as `django-admin`, is gone on with.
        text = path.read_text() if path.exists() and named[1] not in self.given else ""
        path.write_text(text + code)
        self.given.add(named[1])

    def run(self, line: str) -> str:
        """Run one command in the reader's folder; return what it printed."""
        for start, action in list(self.before.items()):
            if line.startswith(start):
                action()
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.variables[name] = value
            return ""
        if line.startswith("pip "):
            self.environment.pip(line)
            return ""
        if any(kind in line for kind in SERVING) and not NOT_SERVING.search(line):
            self.serve(line)
            return ""
        ran = subprocess.run(
            ["bash", "-c", self.here(line)], cwd=self.folder, env=self._variables(line), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        statuses = next((allowed for part, allowed in STATUSES.items() if part in line), (0,))
        assert ran.returncode in statuses, f"{line}\n{ran.stdout}{ran.stderr}{self.logs()}"
        assert "Traceback" not in ran.stderr, f"{line}\n{ran.stderr}"
        self.printed.append((line, ran.stdout))
        return ran.stdout

    def serve(self, line: str, ready: Callable[[], bool] | None = None) -> Serving:
        """Start a program that goes on, and wait until it is ready: it consumes, listens, or has said so."""
        kind = next(kind for kind in SERVING if kind in line)
        # A line that starts the same program again follows the end of the first one.
        for one in [one for one in self.serving if kind in one.command and kind != " worker"]:
            self.end(one)
        words = shlex.split(self.here(self._with_port(line, kind)), comments=True)
        settings = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        log_path = self.folder / f"log-{len(list(self.folder.glob('log-*')))}"
        consumers = self.consumers()
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                words[len(settings) :], cwd=self.folder, env=self._variables(line) | settings, stdout=log, stderr=log
            )
        one = Serving(line, process, log_path)
        self.serving.append(one)

        def is_ready() -> bool:
            assert process.poll() is None, f"{line}\n{one.log}"
            if ready is not None:
                return ready()
            if kind in PORTS:
                with socket.socket() as client:
                    return client.connect_ex(("127.0.0.1", int(self.replaced[PORTS[kind]]))) == 0
            if kind == " worker":
                return self.consumers() > consumers
            return kind != " beat" or "beat v" in one.log

        wait_until(is_ready, 60, lambda: f"{line}\n{one.log}", interval_s=0.05)
        return one

    def end(self, one: Serving) -> None:
        """End a program as a user does, and look whether it went well."""
        self.serving.remove(one)
        if one.process.poll() is None:
            one.process.terminate()
        status = one.process.wait(30)
        assert status in ENDED, f"{one.command}: {status}\n{one.log}"
        assert "Traceback" not in one.log, f"{one.command}\n{one.log}"

    def end_all(self, kind: str = "") -> None:
        """End all programs that go on, or those of a kind."""
        for one in [one for one in self.serving if kind in one.command]:
            self.end(one)

    def kill(self) -> None:
        """Leave nothing behind."""
        for one in self.serving:
            one.process.kill()
            one.process.wait()

    def output(self, start: str) -> str:
        """Return what the last command printed that begins so."""
        return next(printed for line, printed in reversed(self.printed) if line.startswith(start))

    def logs(self) -> str:
        """Return what all programs that go on have printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("log-*")))

    def port_of(self, kind: str) -> str:
        """Return the port that a program was given in place of the page's."""
        port = PORTS[kind]
        if port not in self.replaced:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.replaced[port] = str(probe.getsockname()[1])
        return self.replaced[port]

    def consumers(self) -> int:
        """Return how many consumers there are, of queues that are not Celery's own."""
        with self.server.client() as client:
            keys = [key for key in client.scan_iter(match="*consumers:{*", count=1000) if b"pidbox" not in key]
            return sum(client.zcard(key) for key in keys)

    def here(self, text: str) -> str:
        """Return a text of the page with this machine's addresses."""
        for shown, real in {**self.replaced, ADDRESS: f"127.0.0.1:{self.server.port}"}.items():
            text = text.replace(shown, real)
        return text

    def _with_port(self, line: str, kind: str) -> str:
        if kind not in PORTS:
            return line
        port = self.port_of(kind)
        return line if PORTS[kind] in line else f"{line} --port={port}"

    def _variables(self, line: str) -> dict[str, str]:
        variables = self.environment.variables | self.variables
        if line.startswith("celery-redis-plus") and not re.search(r" (-A|--app|--broker|--url)\b", line):
            # The command's own default is the port 6379.
            variables["CELERY_BROKER_URL"] = f"redis://127.0.0.1:{self.server.port}/0"
        return variables | {"C_FORCE_ROOT": "1", "HOME": os.fspath(self.folder)}


def followed(page: Path) -> list[Block]:
    """Return the blocks of a page that a reader takes: all but those that are marked as run elsewhere, or nowhere."""
    return [block for block in of_page(page) if not block.reason or FOLLOWER in block.reason]


def commands(block: Block) -> Iterator[str]:
    """Yield the commands of a block, without what they print."""
    lines = block.code.splitlines()
    marked = any(line.startswith("$ ") for line in lines)
    for line in lines:
        if line.strip() and (not marked or line.startswith("$ ")):
            yield line.removeprefix("$ ")
