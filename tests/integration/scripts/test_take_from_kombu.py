"""The script `take_from_kombu`: what another process takes from a list meanwhile does not hide the rest of a page."""

from __future__ import annotations

import pytest

from tests.integration.scripts.workshop import Workshop
from tests.support.clock import scripts_read_a_key


@pytest.fixture
def shop(redis_client):
    with scripts_read_a_key():
        shop = Workshop(redis_client)
        yield shop
    shop.commands.close()


@pytest.mark.parametrize("behind", [0, 1, 500])
def test_a_message_is_found_where_others_stand_behind_it(shop, behind):
    shop.declare("q")
    shop.client.rpush("kombu", "first", "wanted", *(f"other{number}" for number in range(behind)))
    keys = [*shop.q.publish, b"kombu", b"unacked_index"]
    assert shop.run("take_from_kombu", keys, b"wanted", b"", b"{}\nwanted", 255, "0", "", "") == [1]
    assert shop.found() == {b"wanted": 1}
    assert shop.client.llen("kombu") == 1 + behind
