from __future__ import annotations

import pytest

from celery_redis_plus.stored_message import BODY_SEPARATOR, LARGE_BODY, split_payload


@pytest.mark.parametrize(
    "body", [b"", b"\n", b"x\ny\n", bytes(range(256)), b"x" * LARGE_BODY], ids=lambda body: f"{len(body)} bytes"
)
def test_a_payload_is_split_where_it_was_joined(body):
    assert split_payload(b'{"a":1}' + BODY_SEPARATOR + body) == (b'{"a":1}', body)


def test_a_large_body_is_not_in_the_payload():
    assert split_payload(b"{}") == (b"{}", None)
