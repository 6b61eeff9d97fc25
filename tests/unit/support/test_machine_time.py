"""The clock for upper bounds stands still while a process does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

PROGRAM = """
import time
from tests.support.machine_time import machine_time
began, by_machine = time.monotonic(), machine_time()
print(flush=True)
input()
print(time.monotonic() - began, machine_time() - by_machine)
"""


def test_the_time_for_which_a_process_is_held_up_does_not_count():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        passed, by_machine = map(float, process.communicate("\n", timeout=30)[0].split())
    assert passed >= 0.5
    assert by_machine <= passed - 0.4
