"""Faults of workers and publishers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.crew import READY_S
from tests.chaos.faults.targets import of_a_worker
from tests.support.judge import records
from tests.support.judge.recorder import note

if TYPE_CHECKING:
    from tests.chaos.crew import Member
    from tests.chaos.storm import Storm

ROOT = Path(__file__).parents[3]
#: Seconds within which a publisher begins to publish.
PUBLISHER_START_S = 180.0


@of_a_worker
def kill_worker(storm: Storm, member: Member) -> bool:
    """SIGKILL for a worker and its children."""
    storm.note("kill", member.life)
    member.kill()
    storm.pause(0, 0.2)
    member.start()
    return True


@of_a_worker
def kill_main(storm: Storm, member: Member) -> bool:
    """SIGKILL for a worker's main process alone: its children find out by themselves."""
    storm.note("kill the main process of", member.life)
    storm.orphaned.append(member.worker.pid)
    member.kill(parent_only=True)
    storm.pause(0, 0.2)
    member.start()
    return True


@of_a_worker
def kill_child(storm: Storm, member: Member) -> bool:
    """SIGKILL for one process of a worker's pool."""
    if not _has_started(member):
        return False
    # Celery ends a worker one of whose first processes has died before its loop begins.
    storm.pause(1, 1.5)
    children = children_of(member.worker.pid)
    if not children:
        return False
    victim = storm.chooser.choice(children)
    storm.note(f"kill the child {victim} of", member.life)
    member.life.children_killed[victim] = storm.now()
    note(records.CHILD_KILLED, process=member.worker.pid, detail={"pid": victim})
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    return True


def _has_started(member: Member) -> bool:
    try:
        member.worker.wait_until_ready(0)
    except TimeoutError:
        return False
    return True


@of_a_worker
def stop_worker(storm: Storm, member: Member) -> bool:
    """A warm shutdown."""
    member.worker.wait_until_ready(READY_S)
    storm.note("stop", member.life)
    status = member.stop()
    if status:
        storm.failures.append(f"a warm shutdown ended with {status}: {member.worker.tail()}")
    member.start()
    return True


@of_a_worker
def freeze_worker(storm: Storm, member: Member) -> bool:
    """SIGSTOP for longer than the visibility timeout."""
    storm.note("freeze", member.life)
    with member.silent():
        member.worker.freeze()
        storm.outlast_leases()
        member.worker.thaw()
    storm.note("thaw", member.life)
    return True


@of_a_worker
def stall_maintenance(storm: Storm, member: Member) -> bool:
    """Have a worker's maintenance thread do nothing: for less than the visibility timeout, or for longer."""
    stalled = storm.stalls / str(member.worker.pid)
    storm.note("stall the maintenance of", member.life)
    try:
        if storm.chooser.random() < 0.5:
            stalled.touch()
            storm.pause(0.2, storm.visibility_timeout_s / 4)
        else:
            with member.silent():
                stalled.touch()
                storm.outlast_leases()
                stalled.unlink()
    finally:
        stalled.unlink(missing_ok=True)
    storm.note("end of the stall of", member.life)
    return True


def kill_publisher(storm: Storm) -> bool:
    """SIGKILL for a process that publishes tasks."""
    storm.publisher_processes += 1
    name = f"k{storm.publisher_processes}-"
    with storm.publishing():
        return _kill_publisher(storm, name)


def _kill_publisher(storm: Storm, name: str) -> bool:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.publisher_process", storm.publishers.url(), name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    try:
        # A line, or its end.
        heard, _, _ = select.select([process.stdout], [], [], PUBLISHER_START_S)
        storm.pause(0, 1)
        if not heard or process.poll() is not None:
            raise RuntimeError(f"the publisher published nothing in {PUBLISHER_START_S} s, or ended: {process.returncode}")
        storm.note(f"kill the publisher {name}{process.pid}")
        note(records.KILLED, process=process.pid)
    finally:
        process.kill()
        process.communicate()
    return True


# ---- the processes of the machine


def children_of(pid: int) -> list[int]:
    """Return the living children of a process."""
    return [one for one, (state, parent, _) in _processes() if parent == pid and state != "Z"]


def living_in_group(group: int) -> list[int]:
    """Return the living processes of a group."""
    return [one for one, (state, _, its_group) in _processes() if its_group == group and state != "Z"]


def _processes() -> list[tuple[int, tuple[str, int, int]]]:
    """All processes: id, state, parent, group. Source: proc_pid_stat(5)."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                state, parent, group = (path / "stat").read_text().rpartition(")")[2].split()[:3]
                found.append((int(path.name), (state, int(parent), int(group))))
    return found
