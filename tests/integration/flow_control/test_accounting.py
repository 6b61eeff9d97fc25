"""Concurrent publishers never exceed a limit, and every message is accounted for. The long form: tests/chaos/test_limits.py."""

from __future__ import annotations

import pytest

from tests.support import accounting


@pytest.mark.slow
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx", "block"])
def test_four_processes_never_exceed_a_limit_and_nothing_is_unaccounted_for(redis_client, broker_url, overflow):
    counted = "x-max-pending" if overflow in ("block", "reject-publish") else "x-max-length"
    arguments = {counted: 50, "x-overflow": overflow}
    account = accounting.run(redis_client, broker_url, "q", arguments, publishers=4, each=150, consume=True)
    accounting.check(account, overflow, 50, counted)
    if overflow == "block":
        assert int(redis_client.hget("meta:{q}", "blocked")) > 0, "nobody waited"
