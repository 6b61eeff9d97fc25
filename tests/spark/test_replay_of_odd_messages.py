"""A replay of archived messages passes over those that cannot be read."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pyarrow as pa

from celery_redis_plus.keys import Keys
from celery_redis_plus.spark.replay import Destination, _sending
from celery_redis_plus.stored_message import BODY_SEPARATOR
from tests.support.odd_messages import envelope
from tests.support.servers import new_server


def test_messages_behind_one_that_cannot_be_read_are_replayed(caplog):
    plain = envelope()
    good = b'{"headers":{},"properties":{"delivery_info":{}}}' + BODY_SEPARATOR + b"x"
    odd = [b"", b"x", b"[]\n", b"{}\n", b"[" * 100_000 + b"\n", repr(plain).encode() + b"\n"]
    rows = [{"id": str(number), "queue": "q", "payload": payload} for number, payload in enumerate([good, *odd, good])]
    with new_server() as server, server.client() as client:
        destination = Destination(url=server.url(), name="again")
        (sent,) = _sending(destination)([pa.RecordBatch.from_pylist(rows)])
        assert sent.to_pylist() == [{"sent": 2}]
        assert client.zcard(Keys("").queue("q").ready) == 2
    assert len([record for record in caplog.records if "is not replayed" in record.getMessage()]) == len(odd)
