"""The demo as a user starts it, and what is left of it however it ends. (Its verification: tests/unit/demo.)"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_redis_plus.cli.exit_status import UNREACHABLE
from tests.docs.blocks import ROOT
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"),
]

# -P: as the installed program does, which does not look for modules where it is started.
COMMAND = [sys.executable, "-P", "-m", "celery_redis_plus", "demo"]


@pytest.fixture
def folder(tmp_path):
    """Where the demo puts its temporary files; every process of it has this in its environment, or works there."""
    path = tmp_path / "tmp"
    path.mkdir()
    return path


@contextmanager
def demo(folder, *arguments):
    """Start the demo; its output goes into a file beside the folder."""
    with (folder.parent / "output").open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder.parent,
            # The broker of the user's own shell must have no effect.
            env={**os.environ, "TMPDIR": str(folder), "CELERY_BROKER_URL": "redis://localhost:1/0"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def recorded(output):
    """Return the output as docs/demo.md shows parts of it: scenarios, expectations, and the end, without what a run measures."""
    lines = output.splitlines()
    shown = [
        line for line, below in zip(lines, [*lines[1:], ""], strict=True) if below.startswith("---") or line.startswith("  ok")
    ]
    text = "\n".join([*shown[1:], lines[-1]])
    text = re.sub(r"(in the middle of: )\d+", r"\g<1>1", text)
    text = re.sub(r"(longest lateness: )[\d.]+", r"\g<1>38.1", text)
    return re.sub(r"(back at a living worker after: )[\d.]+", r"\g<1>5.2", re.sub(r"in \d+ seconds", "in 20 seconds", text))


def output_of(folder):
    return (folder.parent / "output").read_text(encoding="utf-8")


def processes_of(folder):
    """Return the command lines of the processes that belong to the demo in `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
            # The server overwrites its arguments and its environment to set its title.
            directory = os.fsencode((process / "cwd").readlink())
        except OSError:
            continue
        if arguments and os.fsencode(folder) in arguments + environment + directory:
            found.append(arguments.replace(b"\0", b" ").decode(errors="replace"))
    return found


def wait_until_nothing_is_left(folder):
    wait_until(lambda: not processes_of(folder), 30, lambda: processes_of(folder))
    wait_until(lambda: not list(folder.iterdir()), 30, lambda: list(folder.iterdir()))


def wait_for_work(folder, process):
    """Wait until server and worker run, and the worker has begun."""

    def worker_has_begun():
        assert process.poll() is None, output_of(folder)
        return "executed: " in output_of(folder)

    wait_until(worker_has_begun, 120, lambda: output_of(folder))
    commands = " ".join(processes_of(folder))
    assert "celery_redis_plus.demo.app" in commands
    assert "cleanup_process.py" in commands


@pytest.mark.timeout(400)
def test_demo_finds_all_its_claims_true_within_a_minute_and_leaves_nothing_behind(folder):
    (folder.parent / "celery.py").write_text("raise SystemExit('the wrong celery')")
    began = time.monotonic()
    with demo(folder) as process:
        status = process.wait(300)
    took_s = time.monotonic() - began

    output = output_of(folder)
    assert status == 0, output
    # A machine that has as much to do as two of them takes twice as long.
    assert took_s < 60 * max(1.0, os.getloadavg()[0] / os.cpu_count()), output
    true, expectations = map(int, re.search(r"(\d+) of (\d+) expectations are met", output).groups())
    assert true == expectations >= 15
    assert "FALSE" not in output
    assert "\x1b" not in output
    for scenario in ("Priorities", "Countdowns", "Retries", "Broadcasts", "Crash", "Shutdown"):
        assert f"\n{scenario}\n---" in output
    (block,) = re.findall(r"```text\n(.*?)\n```", (ROOT / "docs/demo.md").read_text(encoding="utf-8"), re.DOTALL)
    parts = re.split(r"\n(?=\w)", block)
    assert len(parts) == 3
    assert [part for part in parts if part not in recorded(output)] == []
    wait_until_nothing_is_left(folder)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.weekly)]
)
def test_interrupted_demo_on_a_given_server_leaves_neither_processes_nor_keys(folder, broker_url, redis_client, number, status):
    redis_client.set("of somebody else", "1")
    with demo(folder, "--url", broker_url, "--verbose") as process:
        wait_for_work(folder, process)
        assert len(redis_client.keys("crp-demo-*")) > 1
        process.send_signal(number)
        assert process.wait(60) == status, output_of(folder)

    assert "Traceback" not in output_of(folder)
    assert "one@demo ready." in output_of(folder)
    wait_until_nothing_is_left(folder)
    assert redis_client.keys() == [b"of somebody else"]


def test_demo_killed_with_sigkill_leaves_neither_processes_nor_files(folder):
    with demo(folder) as process:
        wait_for_work(folder, process)
        assert "valkey" in " ".join(processes_of(folder))
        process.kill()
        process.wait()

        wait_until_nothing_is_left(folder)


def test_server_that_is_not_there_is_told_without_a_traceback(folder):
    with demo(folder, "--url", "redis://:secret@127.0.0.1:1/0") as process:
        status = process.wait(100)

    assert status == UNREACHABLE
    assert "127.0.0.1:1" in output_of(folder)
    assert "Traceback" not in output_of(folder)
    assert "secret" not in output_of(folder)
    wait_until_nothing_is_left(folder)
