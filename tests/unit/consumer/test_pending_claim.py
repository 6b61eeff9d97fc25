"""A worker whose tasks run elsewhere sends a claim, and reads its reply in a later tick."""

from __future__ import annotations

import pytest

from celery_redis_plus import clock as process_clock
from tests.support.process_clock import ProcessClock


@pytest.fixture
def busy(consuming, hub):
    """A delivery loop in an event loop beside a pool that works on message `a`; the claim for the next one is under way."""
    world = consuming()
    world.broker.publish("q", "a")
    world.chan = world.channel("q", prefetch=10)
    world.hub = hub
    world.loop.attach(hub)
    world.loop.server.fetcher.pool_is_concurrent = True
    turn(world, until=lambda: world.messages)
    world.broker.publish("q", "b")
    world.session.waiter.comes(world.session.keys.queue("q").wakeup)
    turn(world, until=lambda: world.broker.posted)
    yield world
    world.loop.detach()


def turn(world, *, until, most=200):
    for _ in range(most):
        if until():
            return
        world.hub.run_once()
    raise AssertionError("the loop did not get there")


def tags(world):
    return [message.delivery_tag for message in world.messages]


def test_its_messages_are_delivered_when_the_reply_has_come(busy):
    assert tags(busy) == ["a"]
    busy.broker.answer()
    turn(busy, until=lambda: len(busy.messages) == 2)
    assert tags(busy) == ["a", "b"]


def test_at_most_one_is_under_way(busy):
    for _ in range(20):
        busy.hub.run_once()
    assert len(busy.broker.posted) == 1


def test_a_cancel_waits_for_it_and_releases_its_messages(busy):
    busy.chan.basic_cancel("q")
    assert not busy.broker.posted
    assert busy.waiting("q") == ["b"]
    assert busy.unacked.tags() == ["a"]


def test_a_detached_loop_delivers_its_messages_later(busy):
    busy.loop.detach()
    assert not busy.broker.posted
    assert busy.drain() == ["b"]


def test_a_refused_claim_raises_in_the_loop(busy):
    *_, done = busy.broker.posted.popleft()
    done(None, RuntimeError("refused"))
    with pytest.raises(RuntimeError, match="refused"):
        turn(busy, until=lambda: len(busy.messages) == 2)


def test_a_connection_on_which_nothing_but_its_reply_is_missing_is_given_up(busy, monkeypatch):
    """No sign of life is sent there meanwhile: the reply would come first."""
    ended, clock = [], ProcessClock(process_clock.now_s())
    monkeypatch.setattr(busy.session.commands, "abort", ended.append, raising=False)
    monkeypatch.setattr(process_clock, "now_s", clock)
    fetcher = busy.loop.server.fetcher
    clock.advance(busy.session.options.socket_timeout - 1)
    fetcher.check_pending()
    assert ended == []
    clock.advance(2)
    fetcher.check_pending()
    assert [str(error) for error in ended] == ["the server did not answer a claim, or a look for messages"]


def test_a_connection_on_which_a_look_is_not_answered_is_given_up(consuming, monkeypatch):
    world, ended, clock = consuming(), [], ProcessClock(process_clock.now_s())
    world.channel("q")
    monkeypatch.setattr(world.session.commands, "abort", ended.append, raising=False)
    monkeypatch.setattr(world.session.commands, "command_nowait", lambda *_, **__: None)
    monkeypatch.setattr(process_clock, "now_s", clock)
    fetcher = world.loop.server.fetcher
    fetcher.look()
    clock.advance(world.session.options.socket_timeout + 1)
    fetcher.look()
    assert len(ended) == 1


def test_acks_of_a_worker_with_a_pool_leave_with_the_next_claim(busy):
    busy.ack("a")
    assert busy.broker.settled == []
    busy.broker.answer()
    turn(busy, until=lambda: busy.broker.settled)
    assert [tag for _, tag in busy.broker.settled] == ["a"]
