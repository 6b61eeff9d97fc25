"""Faults of the network, by the proxies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.chaos.faults.targets import of_a_worker

if TYPE_CHECKING:
    from tests.chaos.crew import Member
    from tests.chaos.storm import Storm
    from tests.support.proxy import Proxy


@of_a_worker
def cut_off(storm: Storm, member: Member) -> bool:
    """Cut a worker off for longer than the visibility timeout."""
    storm.note("cut off", member.life)
    with member.silent():
        member.proxy.blackhole()
        storm.outlast_leases()
        if storm.chooser.random() < 0.5:
            # What was held back never arrives.
            member.proxy.reset()
        member.proxy.heal()
    storm.note("healed", member.life)
    return True


def blackhole(storm: Storm) -> bool:
    """Let nothing through, and tell nobody."""
    return _weather(storm, "blackhole", lambda proxy: proxy.blackhole(), storm.visibility_timeout_s / 5)


def one_way(storm: Storm) -> bool:
    """The same in one direction: either commands or replies get through."""
    commands = storm.chooser.random() < 0.5
    what = f"blackhole for {'commands' if commands else 'replies'}"
    return _weather(storm, what, lambda proxy: proxy.one_way(commands=commands), storm.visibility_timeout_s / 5)


def reset(storm: Storm) -> bool:
    """Reset all connections."""
    return _weather(storm, "reset", lambda proxy: proxy.reset(), 0)


def refuse(storm: Storm) -> bool:
    """Reset all connections, and each new one."""
    return _weather(storm, "refuse", lambda proxy: proxy.refuse(), storm.visibility_timeout_s / 5)


def slow(storm: Storm) -> bool:
    """50 kB a second."""
    return _weather(storm, "slow", lambda proxy: proxy.slow(50_000), 2)


def delay(storm: Storm) -> bool:
    """30 ms more for each piece."""
    return _weather(storm, "delay", lambda proxy: proxy.delay(0.03), 2)


def lose_replies(storm: Storm) -> bool:
    """Throw replies away, then reset."""
    return _weather(storm, "lose_replies", lambda proxy: proxy.lose_replies(), 0.1, resets=True)


def cut_bytes(storm: Storm) -> bool:
    """End each connection in the middle of a command or a reply."""
    return _weather(storm, "cut_bytes", lambda proxy: proxy.cut(), 0.3)


def _weather(storm: Storm, what: str, bad: Callable[[Proxy], None], longest_s: float, *, resets: bool = False) -> bool:
    with storm.crew.one(storm.chooser) as member:
        proxy = _proxy(storm, member)
        whom = "the publishers" if member is None or proxy is storm.publishers else member.life
        storm.note(f"{what}:", whom)
        bad(proxy)
        storm.pause(0, longest_s)
        if resets:
            proxy.reset()
        proxy.heal()
        storm.note(f"end of {what}:", whom)
    return True


def _proxy(storm: Storm, member: Member | None) -> Proxy:
    if member is None or storm.chooser.random() < 0.3:
        return storm.publishers
    return member.proxy
