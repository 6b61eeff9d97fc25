"""docs/tutorial.md, followed to the letter: a script does only what the page says, on a free port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from celery_redis_plus.keys import Keys
from tests.docs.blocks import ROOT, of_page
from tests.support.waiting import wait_until

PAGE = ROOT / "docs/tutorial.md"
PORT = "6379"
#: What runs in a terminal of its own, until it is ended.
SERVING = ("python server.py", "celery -A shop worker")


class Reader:
    """Follows the page in one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = str(probe.getsockname()[1])
        bin_folder = os.fsdecode(Path(sys.executable).parent)
        self._env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "C_FORCE_ROOT": "1"}

    def save(self, code: str) -> None:
        name = code.partition("\n")[0].removeprefix("# ")
        (self._folder / name).write_text(code.replace(PORT, self._port))

    def run(self, command: str) -> str:
        if command.startswith("pip install"):
            return ""
        if command.startswith("kill"):
            # Ten lines are shipped by the time a reader has read on.
            wait_until(lambda: len(self.shipped()) >= 10, 60)
        if command.startswith(SERVING):
            self._serve(command)
            return ""
        ran = subprocess.run(
            ["bash", "-c", command], cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
        return ran.stdout

    def shipped(self) -> list[str]:
        file = self._folder / "shipped.txt"
        return file.read_text().splitlines() if file.exists() else []

    def nothing_is_left(self) -> bool:
        of = Keys().queue("celery")
        with redis.Redis(port=int(self._port)) as client:
            return not client.exists(of.ready, of.index)

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("log-*")))

    def wait_for_server(self) -> None:
        def listens() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", int(self._port))) == 0

        wait_until(listens, 30, self.log)

    def _serve(self, command: str) -> None:
        with (self._folder / f"log-{len(self.log())}").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=self._folder, env=self._env, stdout=log, stderr=log, start_new_session=True
            )

        def end() -> None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        self._stack.callback(end)


@pytest.mark.slow
def test_the_tutorial_kills_a_worker_and_loses_nothing(tmp_path):
    with ExitStack() as stack:
        reader = Reader(tmp_path, stack)
        for block in of_page(PAGE):
            if block.language == "python":
                reader.save(block.code)
            elif block.language == "bash":
                for command in block.code.splitlines():
                    reader.run(command)
                if "server.py" in block.code:
                    reader.wait_for_server()
            else:
                assert block.language == "console"
                wait_until(lambda: set(reader.shipped()) == {str(order) for order in range(200)}, 90, reader.log)
                wait_until(reader.nothing_is_left, 30, reader.log)
                commands = [line.removeprefix("$ ") for line in block.code.splitlines() if line.startswith("$ ")]
                assert "".join(f"$ {command}\n{reader.run(command)}" for command in commands) == block.code
        assert "two@" in reader.log()
        assert "is lost: it had no connection for 5 s" in reader.log()
