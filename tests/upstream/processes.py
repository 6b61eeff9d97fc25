"""A child process with a group of its own, ended whole: the suites start workers that may outlive them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_POLL_S = 0.2
_GRACE_S = 5.0


def run_group(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], deadline_s: float) -> bool:
    """Run `command` until it ends or its time is over, then end all that it left behind.

    Returns:
        True if it ended in time.
    """
    process = subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True)
    try:
        in_time = _ended_within(process.pid, deadline_s)
    finally:
        # Not yet waited for, so the group's number is still ours and cannot name somebody else's processes.
        _signal_group(process.pid, signal.SIGTERM)
        if not _ended_within(process.pid, _GRACE_S):
            _signal_group(process.pid, signal.SIGKILL)
            _ended_within(process.pid, _GRACE_S)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
    return in_time


def _ended_within(pid: int, seconds: float) -> bool:
    give_up_at = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(_POLL_S)
    return True


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
