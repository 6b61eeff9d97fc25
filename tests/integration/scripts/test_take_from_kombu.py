"""The script `take_from_kombu`: what another process takes from a list meanwhile does not hide the rest of a page."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("behind", [0, 1, 500])
def test_a_message_is_found_where_others_stand_behind_it(shop, behind):
    one = shop()
    one.declare("q")
    one.client.rpush("kombu", "first", "wanted", *(f"other{number}" for number in range(behind)))
    keys = [*one.q.publish, b"kombu", b"unacked_index"]
    assert one.run("take_from_kombu", keys, b"wanted", b"", b"{}\nwanted", 255, "0", "", "") == [1]
    assert one.found() == {b"wanted": 1}
    assert one.client.llen("kombu") == 1 + behind
