"""The reasons why a message waits, is held, or died: each one holds at the moment of the facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from celery_redis_plus.admin.diagnosis.queue_checks import SILENT_PART
from celery_redis_plus.admin.explanation.cause import Cause
from celery_redis_plus.admin.formatting import span, utc, visible
from celery_redis_plus.broker.arguments.eta import time_of_ms
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR, NOT_INTERESTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.admin.explanation.facts import Facts
    from celery_redis_plus.broker.consumers.registry import ConsumerRecord

#: Why a message died, in words, by its reason.
DEATHS: Final = {
    "rejected": "its consumer rejected it without requeue, or could not read it",
    "delivery_limit": "its deliveries failed too often (the delivery limit)",
    "retry_policy": "the retry policy of its queue is none, or at its end",
    "expired": "it was ready for longer than its time to live",
    "maxlen": "its queue was full (x-max-length)",
    "cancelled": "it was cancelled",
    "damaged": "a field of it that should be a number is none",
    "unroutable": "no queue takes it",
    "no_subscribers": "its exchange had no subscriber",
    "ack_timeout": "it was tracked, and its consumer did not answer in time",
}


def causes(facts: Facts, *, silent_s: float) -> Iterator[Cause]:
    """Yield the reasons, the strongest first.

    Args:
        facts: of the message.
        silent_s: the option `consumer_heartbeat_timeout`, in seconds.
    """
    if facts.place == "ready":
        yield from _ready(facts, silent_s)
    elif facts.place == "held":
        yield _held(facts)
        yield from (*_shut(facts), *_limits(facts), *_takers(facts, silent_s))
    elif facts.place == "limited":
        yield _limited(facts)
        yield from (*_shut(facts), *_limits(facts), *_takers(facts, silent_s))
    elif facts.place == "delayed":
        yield from _delayed(facts)
    elif facts.place == "claimed":
        yield from _claimed(facts, silent_s)
    elif facts.place in ("dead", "forwarded"):
        yield from _dead(facts)
    else:
        yield from _gone(facts)


def _ready(facts: Facts, silent_s: float) -> Iterator[Cause]:
    found = [*_shut(facts), *_limits(facts), *_takers(facts, silent_s), *_behind(facts)]
    yield from found
    if facts.message["expires"] and facts.number("expires") <= facts.now_ms and not facts.message["task_expiry"]:
        yield Cause("expired", "its time to live is over: the next look at the queue ends it")
    if not found:
        yield Cause("next", "it is the next one, and no consumer holds anything: it is about to be taken")


def _held(facts: Facts) -> Cause:
    """Return why the group of a message keeps it back."""
    values = {"group": facts.group, "held_before": facts.held_before, "admitted": facts.admitted}
    text = f"it waits behind {facts.held_before + facts.admitted:,} of its group {visible(facts.group)!r}"
    text += f": {facts.admitted:,} ready or in work, {facts.held_before:,} held before it"
    if facts.arguments is not None and facts.arguments.group_concurrency is not None:
        text += f" (x-group-concurrency {facts.arguments.group_concurrency:,})"
    return Cause("group", text, values)


def _limited(facts: Facts) -> Cause:
    """Return for which limiter a message waits."""
    text = f"it waits for limiter {visible(facts.limiter)!r}, behind {facts.limited_before:,} of its queue"
    until = facts.limited_until or None
    if until is not None:
        text += f"; that is looked at again at {utc(until)}"
    values = {"limiter": facts.limiter, "before": facts.limited_before, "looked_at": until and time_of_ms(until)}
    return Cause("limiter", text, values)


def _shut(facts: Facts) -> Iterator[Cause]:
    """Yield what keeps every message of the queue from consumers."""
    queue = facts.found.queue
    if facts.is_paused:
        by, until = facts.queue["paused_by"], int(facts.of_queue("paused_until"))
        since = int(facts.of_queue("paused_at"))
        text = f"queue {queue!r} is paused" + (f" by {visible(by)}" if by else "") + f" since {utc(since)}"
        text += f", until {utc(until)}" if until else ", until it is resumed"
        values = {"reason": facts.queue["paused"], "by": by or None, "since": time_of_ms(since)}
        yield Cause(
            "paused", f"{text}: {visible(facts.queue['paused'])}", {**values, "until": time_of_ms(until) if until else None}
        )
    if not facts.queue["id"]:
        yield Cause("no_queue", f"queue {queue!r} has no record any more")
    elif not facts.live:
        yield Cause("no_consumer", f"queue {queue!r} has no live consumer", {"processes": facts.processes})


def _limits(facts: Facts) -> Iterator[Cause]:
    arguments = facts.arguments
    if arguments is None:
        return
    most, rate = arguments.max_unacked, arguments.rate_per_s
    if most is not None and facts.unacked >= most:
        text = f"{facts.unacked:,} messages of the queue are in work, and x-max-unacked allows {most:,}"
        yield Cause("max_unacked", text, {"unacked": facts.unacked, "max_unacked": most})
    if rate is not None and facts.tokens < 1:
        wait_s = (1 - facts.tokens) / rate
        text = f"x-rate-limit lets {rate:g} a second through, and is used up: the next one goes in {span(wait_s)}"
        yield Cause("rate_limit", text, {"rate_per_s": rate, "next_in_s": round(wait_s, 3)})


def _takers(facts: Facts, silent_s: float) -> Iterator[Cause]:
    """Yield what is to say of the consumers that may have the message."""
    consumers = facts.consumers
    by_id = {one.id: one for one in consumers}
    takers: Sequence[ConsumerRecord] = consumers
    alone, active = facts.queue["exclusive"], facts.queue["active"]
    if alone:
        takers = [by_id[alone]] if alone in by_id else []
        yield Cause("exclusive", f"one consumer has the queue alone{_on(takers)}", {"consumer": alone})
    elif facts.arguments is not None and facts.arguments.single_active and facts.live > 1:
        takers = [by_id[active]] if active in by_id else []
        text = f"of the queue's {facts.live:,} consumers only the active one gets messages{_on(takers)}"
        yield Cause("single_active", f"{text} (x-single-active-consumer)", {"consumer": active or None})
    if facts.arguments is not None and facts.arguments.filtered:
        text = "its consumers choose messages by their headers (x-filtered): those that it does not match pass it"
        yield Cause("filtered", text)
    yield from _busy(facts, takers)
    for one in takers:
        age_s = facts.now_ms / 1000 - one.last_heard.timestamp()
        if age_s > SILENT_PART * silent_s:
            text = f"the consumer on {one.host}:{one.pid} is silent for {span(age_s)}: its process is frozen, or cut off"
            yield Cause("silent_consumer", text, {"host": one.host, "pid": one.pid, "silent_s": round(age_s, 1)})


def _busy(facts: Facts, takers: Sequence[ConsumerRecord]) -> Iterator[Cause]:
    sessions = {one.id.partition(CONSUMER_ID_SEPARATOR)[0]: one.held for one in takers}
    held, full = sum(sessions.values()), [one for one in takers if one.state == NOT_INTERESTED]
    if not held and not full:
        return
    text = f"{len(takers):,} consumer(s) hold {held:,} message(s) of the queue"
    if full:
        age_s = max(facts.now_ms / 1000 - min(one.last_heard.timestamp() for one in full), 0.0)
        text += f"; {len(full):,} of them took no more when they reported, up to {span(age_s)} ago"
    yield Cause("busy", text, {"consumers": len(takers), "held": held, "without_credit": len(full)})


def _on(takers: Sequence[ConsumerRecord]) -> str:
    return "".join(f": {one.host}:{one.pid}, which holds {one.held:,} message(s)" for one in takers[:1])


def _behind(facts: Facts) -> Iterator[Cause]:
    if not facts.before:
        return
    values = {"before": facts.before, "higher_priority": facts.higher}
    text = "1 message is before it" if facts.before == 1 else f"{facts.before:,} messages are before it"
    if facts.higher is None:
        text += ", by priority and time (x-priority-ageing)"
    else:
        earlier = facts.before - facts.higher
        text += f": {facts.higher:,} of a higher priority, {earlier:,} that came earlier"
        values["earlier"] = earlier
    yield Cause("behind", text, values)


def _delayed(facts: Facts) -> Iterator[Cause]:
    wait_s = (facts.score_ms - facts.now_ms) / 1000
    values = {"due": time_of_ms(facts.score_ms), "in_s": round(wait_s, 3)}
    if wait_s <= 0:
        yield Cause("overdue", f"it was due {span(-wait_s)} ago, and the sweep that makes it ready has not come", values)
        if not facts.processes:
            yield Cause("no_process", "no consuming process sends heartbeats to this broker: none of them sweeps")
    elif facts.number("claim"):
        text = f"it is due in {span(wait_s)}, at {utc(facts.score_ms)}: it was put back to wait after delivery"
        yield Cause("retry", f"{text} {facts.number('claim'):,}", {**values, "deliveries": facts.number("claim")})
    elif facts.number("expires") == facts.score_ms:
        text = f"it expires in {span(wait_s)}, at {utc(facts.score_ms)}, before the time that it waits for"
        yield Cause("expires_first", text, values)
    elif since_ms := facts.number("waits_since"):
        text = (
            f"it is due in {span(wait_s)}, at {utc(facts.score_ms)}: until then a newer one takes its place (debounce); the first"
        )
        waits_s = max(0, facts.now_ms - since_ms) / 1000
        yield Cause("debounced", f"{text} came {span(waits_s)} ago", {**values, "first": time_of_ms(since_ms)})
    else:
        text = f"it is due in {span(wait_s)}, at {utc(facts.score_ms)}: by a countdown, an eta, x-delay, or a new time"
        yield Cause("due", text, values)
    yield from _shut(facts)


def _claimed(facts: Facts, silent_s: float) -> Iterator[Cause]:
    claimed_ms, holder = facts.number("claimed"), facts.holder
    since = f" since {utc(claimed_ms)}, for {span(max(0, facts.now_ms - claimed_ms) / 1000)}" if claimed_ms else ""
    ends_in_s = (facts.score_ms - facts.now_ms) / 1000
    lease = f"its lease ends in {span(max(0.0, ends_in_s))} unless a heartbeat comes"
    values = {"since": time_of_ms(claimed_ms) if claimed_ms else None, "lease_ends": time_of_ms(facts.score_ms)}
    if holder is None:
        text = f"a connection has it{since} of which no process tells: {lease}"
        yield Cause("unknown_holder", text, {**values, "session": facts.message["owner"]})
        return
    text = f"{holder} has it{since}, prefetched or in work"
    yield Cause("held", text, {**values, "host": holder.host, "pid": holder.pid, "worker": facts.found.holder})
    session = facts.message["owner"]
    heard = [one.last_heard for one in facts.consumers if one.id.partition(CONSUMER_ID_SEPARATOR)[0] == session]
    age_s = facts.now_ms / 1000 - max(heard).timestamp() if heard else 0.0
    if age_s > SILENT_PART * silent_s:
        text = f"its holder is silent for {span(age_s)}: frozen, or cut off; {lease}"
        yield Cause("silent_holder", text, {"silent_s": round(age_s, 1)})
    elif not heard:
        text = f"its holder is no live consumer of the queue: it fetched the message without one, was cancelled, or died; {lease}"
        yield Cause("no_consumer_holds", text)


def _dead(facts: Facts) -> Iterator[Cause]:
    found = facts.found
    reason = found.reason or "unknown"
    text = f"it died at {utc(facts.score_ms)}: {DEATHS.get(reason, visible(reason))}"
    if found.error:
        text += f"; its last error: {visible(found.error.splitlines()[0])}"
    values = {"reason": found.reason, "died": time_of_ms(facts.score_ms), "error": found.error}
    yield Cause("dead", text, values)
    if facts.place == "forwarded":
        yield Cause("forwarded", "it is on its way to the dead-letter exchange of its queue")


def _gone(facts: Facts) -> Iterator[Cause]:
    found = facts.found
    if found.stands:
        yield Cause("gone", "it has gone this moment", {})
        return
    where = f", in queue {found.target!r}" if found.target else ""
    at = f" at {utc(found.since_ms)}" if found.since_ms else ""
    reason = f", reason {visible(found.reason)}" if found.reason else ""
    text = f"it is gone{at}: {found.state}{where}{reason}"
    if found.reason == "replaced":
        text += ": a newer message took its place, with the same task id"
    if found.error:
        text += f"; its error: {visible(found.error.splitlines()[0])}"
    yield Cause("gone", text, {"state": found.state, "reason": found.reason, "target": found.target, "error": found.error})
