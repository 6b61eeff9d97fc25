"""A check counts the events of each epoch of a queue, in whatever order Arrow groups them. No Java."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

import pyarrow as pa
from pyarrow import parquet

from celery_redis_plus.spark.checks import numbers_of
from celery_redis_plus.spark.roots import opened
from tests.support.event_streams import START_MS


@pytest.mark.parametrize("seed", range(40))
def test_each_epoch_has_its_own_numbers(tmp_path, seed):
    source = random.Random(seed)
    # Six queues, each with the epochs of two restarts of its server.
    counts = {
        (f"{what}.{number}", START_MS + source.randrange(10**6)): source.randrange(1, 50)
        for what in ("mail", "orders")
        for number in range(3)
        for _ in range(3)
    }
    rows = [(queue, epoch, n) for (queue, epoch), count in counts.items() for n in range(1, count + 1)]
    source.shuffle(rows)
    columns = {name: list(values) for name, values in zip(("queue", "epoch", "n"), zip(*rows, strict=True), strict=True)}
    parquet.write_table(pa.table(columns), tmp_path / "events.parquet")
    found = numbers_of(opened(tmp_path), ["events.parquet"])
    assert {key: (numbers.rows, numbers.distinct, numbers.last) for key, numbers in found.items()} == {
        key: (count, count, count) for key, count in counts.items()
    }
