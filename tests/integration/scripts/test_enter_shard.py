"""Messages that come from another shard are known until their move is finished, however long that takes."""

from __future__ import annotations

KEPT_MS = 600_000


def test_the_id_of_a_move_that_is_not_finished_never_expires(shop):
    one = shop()
    one.declare("q")

    def enter(number):
        tag = f"{number:019x}.1"
        stored = [f"move {number}", tag, "ready", 1, 2, "payload", "{}\nx"]
        one.run("enter_shard", [*one.q.state_keys, one.q.moved_in], one.clock.now_ms + 1000, KEPT_MS, *stored)

    enter(1)
    one.run("finish_move", [one.q.moved_in], "move 1", KEPT_MS)
    assert 0 < one.client.pttl(one.q.moved_in) <= KEPT_MS
    enter(2)
    assert one.client.pttl(one.q.moved_in) == -1
    enter(2)
    assert len(one.claim()) == 2
