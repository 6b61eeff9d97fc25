"""A reader of the output that goes early."""

from __future__ import annotations

import subprocess
import sys

from tests.support.inbox import declare, publish


def test_output_that_nobody_reads_any_more_ends_the_command_without_a_traceback(broker_url, connect):
    channel = connect().channel()
    for number in range(20):
        declare(channel, "q", arguments={"x-max-length": 1000})
        publish(channel, "q", "x" * 20_000, headers={"n": number})
        message = channel.basic_get("q")
        message.reject()
    command = [sys.executable, "-m", "celery_redis_plus", "dead-letters", "list", "--json", "--url", broker_url, "q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        printed = process.stderr.read()
        assert (process.wait(60), printed) == (141, b"")
