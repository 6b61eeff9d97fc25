"""Deduplication: a publish makes one message, and none while another message stands for its deduplication id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.executions import UNSENT_S
from tests.support.judge.records import (
    ACKED,
    CONFIRMED,
    DELIVERED,
    DISCONNECTED,
    KILLED,
    NOTED_S,
    PUBLISH,
    REJECTED,
    SETTLEMENTS,
    SILENT,
    History,
    Record,
)
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "deduplication"


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each name with more messages than publishes, and each id with two messages at a time."""
    publishes: dict[str, list[Record]] = defaultdict(list)
    ids: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for publish in history.of(PUBLISH):
        if publish.detail.get("exchange"):
            continue
        publishes[publish.name].append(publish)
        if publish.detail.get("dedup"):
            ids[publish.queue, publish.detail["dedup"]].append(publish)
    for name, made in publishes.items():
        queues = {queue for publish in made for queue in history.may_reach(publish)}
        most = sum(max(1, len(history.may_reach(publish))) for publish in made)
        # In another queue it is a dead letter.
        deliveries = {
            record.tag: record for record in history.by_name[name] if record.kind == DELIVERED and record.queue in queues
        }
        again = any(history.rolled_back_between(publish.tick, _known_at(history, publish)) for publish in made)
        if len(deliveries) > most and not again:
            text = f"{name!r} was published {len(made)} times, and is {len(deliveries)} messages"
            yield violation(NAME, text, *made, *deliveries.values())
    for (_, dedup), made in ids.items():
        standing: Record | None = None
        for publish in made:
            came = next((record for record in history.by_name[publish.name] if record.kind == DELIVERED), None)
            if came is None:
                continue
            if standing is not None and _stands(history, standing, publish) and not _is_undone(history, standing, publish):
                text = f"{standing.name!r} stood for the id {dedup!r} when {publish.name!r} was stored"
                yield violation(NAME, text, standing, history.outcome(standing), publish, came)
            standing = publish


def may_stand_for(history: History, standing: Record, publish: Record) -> bool:
    """Return whether the message of `standing` may be why `publish`, of the same id, made none; its own may."""
    confirmed = history.outcome(publish)
    if standing is publish:
        return True
    if confirmed is None or standing.tick > confirmed.tick:
        return False
    scope = standing.detail.get("scope", "ttl")
    if scope == "ttl":
        return publish.tick - _known_at(history, standing) < _ttl_s(standing) + UNSENT_S
    tags = {record.tag for record in history.by_name[standing.name] if record.tag}
    kinds = {DELIVERED} if scope == "until-claimed" else {ACKED, REJECTED}
    ends = [record for tag in tags for record in history.by_tag[tag] if record.kind in kinds and record.tick < publish.tick]
    last = max(ends, key=lambda record: record.tick, default=None)
    if last is None or last.tick + UNSENT_S > publish.tick or history.rolled_back_between(last.tick, confirmed.tick):
        return True
    # What the server never heard stands until another consumer has settled it.
    return bool(history.fates(last.process, KILLED, SILENT, DISCONNECTED, since=last.tick - NOTED_S, until=publish.tick))


def _is_undone(history: History, standing: Record, publish: Record) -> bool:
    """Return whether the server may have lost the message, or what it knew of its id, before the end of another one's publish."""
    began, after = standing.tick, _known_at(history, publish)
    return any(rollback.undoes(began, after, replicated=False) and rollback.at >= began for rollback in history.rollbacks)


def _ttl_s(publish: Record) -> float:
    """Return for how long a publish stands for its id, in seconds."""
    return float(publish.detail.get("ttl_s", 86_400))


def _known_at(history: History, publish: Record) -> float:
    """Return when the outcome of a publish was known; until then it may be tried again."""
    outcome = history.outcome(publish)
    return float("inf") if outcome is None else outcome.tick


def _stands(history: History, standing: Record, publish: Record) -> bool:
    """Return whether a message certainly stood for its id during another one's publish."""
    outcome, after = history.outcome(standing), history.outcome(publish)
    if outcome is None or outcome.kind != CONFIRMED or outcome.tick > publish.tick or after is None:
        return False
    scope = standing.detail.get("scope", "ttl")
    if scope == "ttl":
        return publish.tick - outcome.tick < _ttl_s(standing) and after.tick - outcome.tick < _ttl_s(standing)
    tags = {record.tag for record in history.by_name[standing.name] if record.tag}
    ends = (DELIVERED,) if scope == "until-claimed" else SETTLEMENTS
    over = [record.tick for tag in tags for record in history.by_tag[tag] if record.kind in ends]
    # A claim comes before its delivery is on record.
    return scope == "until-acked" and (not over or min(over) > after.tick)
