"""The limiters of a broker: what was used of them, what is set for them at run time, and what a running task takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from celery_redis_plus.broker.arguments.limiters import Limiter, LimiterRule, check_id
from celery_redis_plus.connection.scans import scan_keys
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import decode_name, encode_name, hash_tag
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Limiters that one script call lists, some 10 µs each.
LIMITERS_A_CALL: Final = 100
#: Limiters, or keys of them, for which something may be set.
MOST_RULES: Final = 1000
#: The longest hold, in ms: 30 days.
LONGEST_HOLD_MS: Final = 30 * 86_400_000

_SET = re.compile(r"(\d+) (\d+) (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LimiterState:
    """A limiter that was used, or one key of it.

    Attributes:
        limiter: its name, and behind a colon its key.
        rule: the rule of its messages, such as `100/s burst=20`.
        set_rule: the rule that was set in its place; None without one.
        free: how much passes now: tokens, messages or places.
        waiting: messages that wait for it, in up to ten queues.
        queues: how many queues these are in, ten at most.
        held_s: for how many seconds nothing passes; 0: it is not held.
    """

    limiter: str
    rule: str
    set_rule: str | None
    free: float
    waiting: int
    queues: int
    held_s: float

    def added_to(self, other: LimiterState) -> LimiterState:
        """Return what both shards have of the limiter."""
        return replace(
            self,
            free=self.free + other.free,
            waiting=self.waiting + other.waiting,
            queues=self.queues + other.queues,
            held_s=max(self.held_s, other.held_s),
        )


def read_limiters(commands: CommandConnection, keys: Keys) -> Iterator[LimiterState]:
    """Yield the limiters that were used. Raises as `CommandConnection.call` does."""
    behind = b"0"
    while behind:
        behind, now, *found = commands.call(script("list_limiters"), [keys.limiters], behind, LIMITERS_A_CALL)
        for name, rule, own, general, free, waiting, queues in zip(*(found[at::7] for at in range(7)), strict=True):
            settings = [match for match in (_SET.fullmatch(decode_name(one)) for one in (own, general)) if match]
            rules = [match[3] for match in settings if match[3]]
            ends = max((int(match[2]) for match in settings), default=0)
            yield LimiterState(
                decode_name(name), decode_name(rule), rules[0] if rules else None, max(float(free), 0.0), waiting, queues,
                max(ends - int(now), 0) / 1000,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A limiter that messages of a queue wait for.

    Attributes:
        limiter: its name, and behind a colon its key.
        waiting: messages of the queue that wait for it.
        until_ms: when the queue looks at it again, ms since the epoch on the server's clock.
    """

    limiter: str
    waiting: int
    until_ms: int


def waited_for(commands: CommandConnection, keys: Keys, queue: str, most: int) -> list[WaitedFor]:
    """Return the limiters that messages of a queue wait for, those first that are looked at next; `most` at most."""
    of = keys.queue(queue)
    found = commands.command("ZRANGE", of.limited_until, 0, most - 1, "WITHSCORES")
    ids = found[::2]
    counts = commands.ask([("ZLEXCOUNT", of.limited, b"[" + one + b"\0", b"(" + one + b"\1") for one in ids])
    return [
        WaitedFor(decode_name(one), int(count), int(float(due))) for one, count, due in zip(ids, counts, found[1::2], strict=True)
    ]


def hold(commands: CommandConnection, keys: Keys, limiter: str, seconds: float) -> None:
    """Let nothing of a limiter pass for so many seconds from now on; 0 ends that. `limiter` may have a key behind a colon.

    Raises as `CommandConnection.call` does.

    Raises:
        InvalidArgument: the name or the time is not allowed; or too many limiters have a rule.
    """
    if isinstance(seconds, bool) or not 0 <= seconds * 1000 <= LONGEST_HOLD_MS:
        raise InvalidArgument(
            f"hold of limiter {limiter!r:.100} for {seconds!r:.100}; allowed is a number of seconds, up to 30 days"
        )
    _set(commands, keys, limiter, str(round(seconds * 1000)), "-")


def set_limiter_rule(commands: CommandConnection, keys: Keys, limiter: str, rule: LimiterRule | None) -> None:
    """Have a rule hold for a limiter in place of that of its messages; None takes it away. Raises as `hold`.

    Raises:
        InvalidArgument: as `hold`; or its messages say a rule of the other kind, which that would not replace: a rate counts what
            has passed, a concurrency what is in work.
    """
    if rule is not None:
        _check_kind(limiter, rule, read_limiters(commands, keys))
    _set(commands, keys, limiter, "", "" if rule is None else str(rule))


def _check_kind(limiter: str, rule: LimiterRule, known: Iterable[LimiterState]) -> None:
    counts_work = rule.shape == "concurrency"
    for state in known:
        is_it = limiter in {state.limiter, state.limiter.partition(":")[0]}
        if is_it and (LimiterRule.parse(state.rule).shape == "concurrency") != counts_work:
            allowed = "a rate, such as '50/s burst=10'" if counts_work else "a concurrency, such as 'concurrency=4'"
            raise InvalidArgument(
                f"rule '{rule}' of limiter {limiter!r:.100}, whose messages say {state.rule!r}; allowed: {allowed}"
            )


def take(commands: CommandConnection, keys: Keys, limiter: Limiter, taker: bytes, patience_s: float | None = None) -> float:
    """Take of a limiter what it asks for; return 0, or after how many seconds there may be room.

    Several tokens are booked for whom asks again within `patience_s` seconds (None: as long as it takes). Raises as
    `CommandConnection.call` does.
    """
    patience_ms = "" if patience_s is None else str(max(0, round(patience_s * 1000)))
    waits = commands.call(script("take_limiter"), [keys.limiter_rules], encode_name(str(limiter)), taker, 0, patience_ms)
    return int(waits) / 1000


def give_back(commands: CommandConnection, keys: Keys, limiter: Limiter, taker: bytes) -> None:
    """Give back the place of a concurrency. Raises as `CommandConnection.call` does."""
    commands.call(script("take_limiter"), [keys.limiter_rules], encode_name(str(limiter)), taker, 1, "")


def waiting_longer(commands: CommandConnection, keys: Keys, queue: str, seconds: float) -> int:
    """Return how many messages of a queue wait for a limiter that is looked at in `seconds` or later."""
    of = keys.queue(queue)
    whole, _ = commands.command("TIME")
    late = commands.command("ZRANGEBYSCORE", of.limited_until, (int(whole) + seconds) * 1000, "+inf")
    return sum(commands.command("ZLEXCOUNT", of.limited, b"[" + one + b"\0", b"(" + one + b"\1") for one in late)


def age_limiters(commands: CommandConnection, keys: Keys, ms: int) -> None:
    """Make what was used of all limiters, and their holds, so much older: for tests of applications."""
    bucket, window, _ = keys.limiter("*")
    for key in {key for page in scan_keys(commands, bucket) for key in page}:
        tokens, _, at = (commands.command("GET", key) or b"").partition(b" ")
        if at:
            commands.command("SET", key, b"%b %.3f" % (tokens, float(at) - ms), "KEEPTTL")
    for key in {key for page in scan_keys(commands, window) for key in page}:
        found = commands.command("ZRANGE", key, 0, -1, "WITHSCORES")
        for member, score in zip(found[::2], found[1::2], strict=True):
            commands.command("ZADD", key, float(score) - ms, member)
    rules = commands.command("HGETALL", keys.limiter_rules)
    for name, said in zip(rules[::2], rules[1::2], strict=True):
        match = _SET.fullmatch(decode_name(said))
        if match and int(match[2]):
            begun, ends = (max(int(match[at]) - ms, 0) for at in (1, 2))
            commands.command("HSET", keys.limiter_rules, name, encode_name(f"{begun} {ends} {match[3]}"))


def taker_of(queue: str, tag: str, claim: str) -> bytes:
    """Return who takes of a limiter: a message that a consumer has."""
    return encode_name(f"{tag}\0{{{hash_tag(queue)}}}\0{claim}")


def _set(commands: CommandConnection, keys: Keys, limiter: str, hold_ms: str, rule: str) -> None:
    check_id(limiter)
    done = commands.call(script("set_limiter"), [keys.limiter_rules], encode_name(limiter), hold_ms, rule, MOST_RULES)
    if int(done) < 0:
        raise InvalidArgument(f"{MOST_RULES:,} limiters have rules or holds of their own; allowed are no more")
