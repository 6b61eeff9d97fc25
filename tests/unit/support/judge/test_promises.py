"""Each promise of the judge: histories that keep it, and histories that break it."""

from __future__ import annotations

import pytest

from tests.support.judge.judging import assert_kept, judge
from tests.support.judge.promises import (
    at_least_once,
    broadcasts,
    dead_letters,
    deduplication,
    delays,
    lateness,
    limits,
    one_holder,
    order,
    priorities,
    repeats,
    routing,
    single_active,
)
from tests.support.judge.records import History, Record, read_line
from tests.support.judge.rules import Rules

A, B = 11, 22


def told(*lines):
    """A history of these records, a tick apart: (kind, what differs from message `m` of queue `q` in process A)."""
    made = []
    for tick, (kind, values) in enumerate(lines, 1):
        given = {"process": A, "tick": float(tick), **values}
        given.setdefault("session", f"s{given['process']}")
        made.append(Record(kind, **given))
    return History(made)


def of(kind, **values):
    """A record of a message: its tag is `t-NAME`."""
    name = values.pop("name", "m")
    by_tag = kind in {"delivered", "acked", "rejected", "requeued", "released", "lost"}
    tag = {"tag": f"t-{name}"} if by_tag else {}
    settled = kind in {"acked", "rejected", "requeued", "released", "lost"}
    return kind, {**({} if settled else {"name": name}), "queue": "q", **tag, **values}


def fate(kind, **values):
    return kind, values


def rolled_back(since, **detail):
    return "rolled_back", {"process": 1, "detail": {"since": since, **detail}}


def child_killed(pid):
    return "child_killed", {"detail": {"pid": pid}}


PUBLISHED = (of("publish"), of("confirmed"))
DELIVERED = of("delivered", claim=1)
AGAIN = of("delivered", claim=2, process=B, redelivered=True)
DRAINED = ("drained", {"queue": "q"})
RUN = (of("start"), of("end"))

KEPT = {
    "a message is delivered, run and acked": (*PUBLISHED, DELIVERED, *RUN, of("acked"), DRAINED),
    "its publisher never came to know": (of("publish"), of("unknown"), DRAINED),
    "it stands in the queue still": (*PUBLISHED, of("left"), DRAINED),
    "its consumer was killed": (
        *PUBLISHED, DELIVERED, of("start"), fate("killed"), AGAIN, of("start", process=B), of("end", process=B),
    ),
    "its consumer was frozen": (
        DELIVERED, of("start"), fate("silent"), AGAIN, of("start", process=B), of("end", process=B), fate("heard"), of("end"),
    ),
    "a thawed consumer finds in its buffer what another one got": (
        fate("silent"), AGAIN, fate("heard"), DELIVERED, of("acked", process=B),
    ),
    "it was asked for again": (DELIVERED, of("start"), of("requeued"), AGAIN, of("start", process=B), of("end", process=B)),
    "its session broke before the work began": (DELIVERED, fate("disconnected"), AGAIN),
    "its session broke at the moment of the delivery": (fate("disconnected", tick=1.99), DELIVERED, AGAIN),
    "its consumer got one more when it was about to be killed": (fate("killed"), DELIVERED, of("acked"), AGAIN),
    "its consumer has ended": (DELIVERED, fate("gone"), AGAIN),
    "it is retried, which is a publish of its own": (
        *PUBLISHED, of("start"), *PUBLISHED, of("start", process=B), of("end", process=B),
    ),
    "the ack had not left when its consumer was killed": (DELIVERED, *RUN, of("acked"), fate("killed"), AGAIN),
    "two in their order": (
        *PUBLISHED, of("publish", name="n"), of("confirmed", name="n"), DELIVERED, of("delivered", name="n", claim=1),
    ),
    "a redelivery comes late": (
        *PUBLISHED, of("publish", name="n"), of("confirmed", name="n"), of("delivered", name="n", claim=1),
        of("delivered", claim=2),
    ),
    "a higher priority comes first": (
        *PUBLISHED, of("publish", name="n"), of("confirmed", name="n"),
        of("delivered", name="n", claim=1, detail={"priority": 9}), DELIVERED,
    ),
    "an eta is kept": (of("publish", detail={"eta": 100.0}), of("confirmed"), of("delivered", claim=1, time=100.001)),
    "full, and no fuller": (
        ("declared", {"queue": "q", "detail": {"x-max-length": 2}}), ("depth", {"queue": "q", "detail": {"waiting": 2}}),
    ),
    "one in work after the other": (
        ("declared", {"queue": "q", "detail": {"x-max-unacked": 1}}),
        DELIVERED, of("acked"), of("delivered", name="n", claim=1, process=B),
    ),
    "the next active consumer takes over": (
        ("declared", {"queue": "q", "detail": {"x-single-active-consumer": True}}),
        DELIVERED, of("acked"), fate("cancelled"), of("delivered", name="n", claim=1, process=B),
    ),
    "a duplicate is dropped": (
        of("publish", detail={"dedup": "d"}), of("confirmed"), of("publish", name="n", detail={"dedup": "d"}),
        of("confirmed", name="n"), DELIVERED,
    ),
    "an id is free again": (
        of("publish", detail={"dedup": "d", "scope": "until-acked"}), of("confirmed"), DELIVERED, of("acked"),
        of("publish", name="n", detail={"dedup": "d", "scope": "until-acked"}), of("confirmed", name="n"),
        of("delivered", name="n", claim=1),
    ),
    "it came out of a buffer when its consumer was cut off, and the ack got lost": (
        fate("silent"), DELIVERED, *RUN, of("acked"), AGAIN, fate("heard"),
    ),
    "the server lost what it had confirmed": (*PUBLISHED, rolled_back(1.5), DRAINED),
    "the server lost what it had confirmed with its replicas": (
        of("publish", detail={"replicas": 1}), of("confirmed"), rolled_back(1.5), DRAINED,
    ),
    "the server lost an ack": (DELIVERED, *RUN, of("acked"), rolled_back(3.5), of("delivered", claim=1, process=B)),
    "the server lost a claim, and gives the same one again": (
        DELIVERED, of("start"), rolled_back(0.5), of("delivered", claim=1, process=B), of("start", process=B),
        of("end", process=B), of("end"),
    ),
    "the server lost two claims, and counts them anew": (
        DELIVERED, of("requeued"), of("delivered", claim=2), of("requeued"), rolled_back(0.5),
        of("delivered", claim=1, process=B), of("requeued", process=B), of("delivered", claim=2, process=B),
        of("acked", process=B),
    ),
    "a claim was lost whose reply was on its way": (
        rolled_back(0.5), of("delivered", claim=1, tick=1.2), of("start", tick=9.0),
        of("delivered", claim=1, process=B, tick=9.1), of("start", process=B, tick=9.2), of("end", process=B, tick=9.3),
        of("end", tick=9.4),
    ),
    "the reply to a claim came just after the server lost it, and counted anew": (
        DELIVERED, of("requeued"), rolled_back(0.5), of("delivered", claim=2, process=B, tick=3.1),
        of("delivered", claim=1, tick=7.0), of("requeued", tick=8.0),
    ),
    "a message waited in a buffer while the server lost its claim": (
        rolled_back(0.5), of("delivered", claim=1, tick=3.0, detail={"confirmed_s_ago": 2.5}),
        of("delivered", claim=2, process=B, tick=3.1), of("acked", tick=3.2),
    ),
    "the server lost a claim, and gave the same message again at once": (
        *(of("delivered", claim=1, tick=1.0), of("requeued", tick=1.4), of("delivered", claim=2, process=B, tick=1.5)),
        *(("rolled_back", {"process": 1, "tick": 2.0, "detail": {"since": 1.2}}), of("delivered", claim=1, tick=2.7)),
    ),
    "a publish is tried again after the server lost the first": (
        of("publish"), DELIVERED, rolled_back(0.0), of("confirmed"),
        ("delivered", {"name": "m", "queue": "q", "tag": "u", "claim": 1}),
    ),
    "a pool process was killed": (of("start", detail={"pid": 5}), child_killed(5), of("start", process=B), of("end", process=B)),
    "a child outlived its killed worker": (
        of("start", detail={"pid": 5}), fate("killed"), of("start", process=B), of("end", detail={"pid": 5}),
        of("end", process=B),
    ),
    "its worker was killed while the server refused its acks": (
        of("start"), of("end"), *(step for n in range(9) for step in (of("start", name=str(n)), of("end", name=str(n)))),
        fate("killed"), ("writable", {"detail": {"since": 2.5}}), of("start", process=B), of("end", process=B),
    ),
    "an eta came early by the clock's step": (
        of("publish", detail={"eta": 100.0}, time=90.0), of("confirmed"), ("clock_stepped", {"detail": {"offset_s": 9.0}}),
        of("delivered", claim=1, time=92.0),
    ),
}  # fmt: skip


POISON = (
    "declared",
    {"queue": "q", "detail": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves", "x-delivery-limit": 2}},
)
GRAVE = of("delivered", tag="t-dead", queue="graves", claim=1, process=B)
GRAVES_DRAINED = ("drained", {"queue": "graves"})


def by_task(kind, process=A):
    """What a task wrote into the ledger: it knows no tag."""
    return kind, {"name": "m", "process": process}


def failed(claim, process=A):
    """A delivery whose task asks for a requeue: the ledger says so by the name, the client by the tag."""
    taken = of("delivered", claim=claim, process=process, redelivered=claim > 1)
    return taken, of("start", process=process), by_task("requeued", process), of("requeued", process=process)


KEPT["a rejected message comes as a dead letter"] = (
    POISON, *PUBLISHED, DELIVERED, of("start"), by_task("rejected"), of("rejected"), GRAVE, of("start", process=B),
    of("end", process=B), DRAINED, GRAVES_DRAINED,
)  # fmt: skip
KEPT["it fails as often as its limit says"] = (POISON, *PUBLISHED, *failed(1), *failed(2, B), GRAVE)
KEPT["a requeue of a killed process did not arrive"] = (
    POISON, *PUBLISHED, *failed(1), *failed(2, B), fate("killed", process=B), *failed(3), GRAVE,
)  # fmt: skip
KEPT["a dead letter by deaths alone"] = (POISON, *PUBLISHED, DELIVERED, fate("killed"), GRAVE)
KEPT["the server lost a deduplication id"] = (
    of("publish", detail={"dedup": "d"}), of("confirmed"), DELIVERED, rolled_back(1.0),
    of("publish", name="n", detail={"dedup": "d"}), of("confirmed", name="n"), of("delivered", name="n", claim=1),
)  # fmt: skip


KEPT["an expired one comes first"] = (
    *PUBLISHED, of("publish", name="n", detail={"expires": True}), of("confirmed", name="n"),
    of("delivered", name="n", claim=1), DELIVERED,
)  # fmt: skip
KEPT["it was claimed before one of a higher priority was there"] = (
    *PUBLISHED, of("publish", name="n"), of("confirmed", name="n"),
    of("delivered", claim=1, detail={"priority": 1, "asked_at": 3.5}),
    of("delivered", name="n", claim=1, detail={"priority": 9}),
)  # fmt: skip
KEPT["an id is free again, and its next message may not have come in time to be one"] = (
    of("publish", detail={"dedup": "d", "scope": "until-acked"}), of("confirmed"), DELIVERED, of("acked"),
    of("publish", name="n", detail={"dedup": "d", "scope": "until-acked"}), of("confirmed", name="n"), DRAINED,
)  # fmt: skip
KEPT["an ack got lost with its process, and the message stood for the next one with its id"] = (
    of("publish", detail={"dedup": "d", "scope": "until-acked"}), of("confirmed"), DELIVERED, of("acked", tick=4.0),
    fate("killed", tick=4.1), of("publish", name="n", detail={"dedup": "d", "scope": "until-acked"}, tick=9.0),
    of("confirmed", name="n", tick=9.1), of("delivered", claim=2, process=B, redelivered=True, tick=9.2),
    of("acked", process=B, tick=9.3), ("drained", {"queue": "q", "tick": 10.0}),
)  # fmt: skip


def news(number, kind="publish", **values):
    detail = {"exchange": "news"}
    return kind, {"name": str(number), "queue": "news", "detail": detail, **values}


def got(number, **values):
    return "delivered", {"name": str(number), "queue": "mine", "tag": f"t{number}", "detail": {"exchange": "news"}, **values}


SUBSCRIBED = ("consuming", {"queue": "mine", "detail": {"exchanges": ["news"]}})
SENT = tuple(news(number, kind) for number in range(3) for kind in ("publish", "confirmed"))
ALL_SEEN = ("drained", {"queue": "news"})
KEPT["all broadcasts come"] = (SUBSCRIBED, *SENT, *map(got, range(3)), ALL_SEEN)
KEPT["a broadcast comes again, and says so"] = (SUBSCRIBED, *SENT, got(0), got(0, redelivered=True), got(1), got(2), ALL_SEEN)
KEPT["a subscriber came later"] = (*SENT[:2], SUBSCRIBED, *SENT[2:], got(1), got(2), ALL_SEEN)
KEPT["a subscriber was killed"] = (SUBSCRIBED, *SENT, got(0), fate("killed"), ALL_SEEN)

KEPT["a subscriber came back, and got what came meanwhile"] = (
    SUBSCRIBED, *SENT, got(0), fate("cancelled"), SUBSCRIBED, got(1), got(2), ALL_SEEN,
)  # fmt: skip
KEPT["the server lost a broadcast"] = (SUBSCRIBED, *SENT[:4], rolled_back(2.9), *SENT[4:], got(0), got(2), ALL_SEEN)

BROKEN = {
    "rejected, and no dead letter": (
        dead_letters,
        (POISON, *PUBLISHED, DELIVERED, of("start"), of("rejected"), DRAINED, GRAVES_DRAINED),
    ),
    "failed too often": (dead_letters, (POISON, *PUBLISHED, *failed(1), *failed(2, B), *failed(3), GRAVE)),
    "a dead letter for no reason": (dead_letters, (POISON, *PUBLISHED, DELIVERED, GRAVE)),
    "delivered after its rejection": (repeats, (DELIVERED, of("rejected"), AGAIN)),
    "none of those with one id is left": (
        at_least_once,
        (
            of("publish", detail={"dedup": "d"}),
            of("confirmed"),
            of("publish", name="n", detail={"dedup": "d"}),
            of("confirmed", name="n"),
            DRAINED,
        ),
    ),
    "a gap of a subscriber that came back": (
        broadcasts,
        (SUBSCRIBED, *SENT, got(0), fate("cancelled"), SUBSCRIBED, got(1), ALL_SEEN),
    ),
    "a broadcast that the server cannot have lost": (
        broadcasts,
        (SUBSCRIBED, *SENT, *([("depth", {})] * 3), rolled_back(11.0), got(0), got(2), ALL_SEEN),
    ),
    "never delivered": (at_least_once, (*PUBLISHED, DRAINED)),
    "delivered and not settled": (at_least_once, (*PUBLISHED, DELIVERED, fate("killed"), DRAINED)),
    "it was on a replica when its server was lost": (
        at_least_once,
        (of("publish", detail={"replicas": 1}), of("confirmed"), rolled_back(1.5, spares_replicated=True), DRAINED),
    ),
    "confirmed before what the server lost": (at_least_once, (*PUBLISHED, rolled_back(3.1), DRAINED)),
    "another pool process was killed": (
        repeats,
        (of("start", detail={"pid": 5}), child_killed(6), of("end", detail={"pid": 5}), of("start", process=B)),
    ),
    "delivered after its ack": (repeats, (DELIVERED, of("acked"), AGAIN)),
    "a claim number twice": (repeats, (DELIVERED, of("released"), of("delivered", claim=1, process=B))),
    "run again for no reason": (repeats, (of("start"), of("end"), of("start", process=B), of("end", process=B))),
    "two holders": (one_holder, (DELIVERED, AGAIN, of("acked"))),
    "two holders, long after the server lost data": (
        one_holder,
        (
            rolled_back(0.5),
            of("delivered", claim=1, tick=3.0, detail={"confirmed_s_ago": 0.5}),
            of("delivered", claim=2, process=B, tick=3.1),
            of("acked", tick=3.2),
        ),
    ),
    "a buffer has what another one got": (one_holder, (AGAIN, DELIVERED, of("acked", process=B))),
    "two holders, one of which has lost its connection": (one_holder, (DELIVERED, of("start"), fate("disconnected"), AGAIN)),
    "two runs at a time": (one_holder, (of("start"), of("start", process=B), of("end"), of("end", process=B))),
    "a rejection while another one runs it": (
        one_holder,
        (of("start"), of("start", process=B), by_task("rejected"), of("end", process=B)),
    ),
    "overtaken": (
        order,
        (*PUBLISHED, of("publish", name="n"), of("confirmed", name="n"), of("delivered", name="n", claim=1), DELIVERED),
    ),
    "too long": (
        limits,
        (("declared", {"queue": "q", "detail": {"x-max-length": 2}}), ("depth", {"queue": "q", "detail": {"waiting": 3}})),
    ),
    "too many in work": (
        limits,
        (
            ("declared", {"queue": "q", "detail": {"x-max-unacked": 1}}),
            DELIVERED,
            of("delivered", name="n", claim=1, process=B),
            of("acked"),
        ),
    ),
    "refused, and delivered": (limits, (of("publish"), of("refused"), DELIVERED)),
    "two active consumers": (
        single_active,
        (
            ("declared", {"queue": "q", "detail": {"x-single-active-consumer": True}}),
            DELIVERED,
            of("acked"),
            of("delivered", name="n", claim=1, process=B),
        ),
    ),
    "early": (delays, (of("publish", detail={"eta": 100.0}), of("confirmed"), of("delivered", claim=1, time=99.9))),
    "begun early": (delays, (of("publish", detail={"eta": 100.0}), of("confirmed"), of("start", time=99.9))),
    "one publish, two messages": (deduplication, (*PUBLISHED, DELIVERED, of("delivered", tag="t-other", claim=1))),
    "a duplicate": (
        deduplication,
        (
            *(of("publish", detail={"dedup": "d"}), of("confirmed"), of("publish", name="n", detail={"dedup": "d"})),
            *(of("confirmed", name="n"), DELIVERED, of("delivered", name="n", claim=1)),
        ),
    ),
    "a duplicate while the first one is in work": (
        deduplication,
        (
            *(of("publish", detail={"dedup": "d", "scope": "until-acked"}), of("confirmed"), DELIVERED),
            *(of("publish", name="n", detail={"dedup": "d", "scope": "until-acked"}), of("confirmed", name="n")),
            *(of("acked"), of("delivered", name="n", claim=1)),
        ),
    ),
    "a gap": (broadcasts, (SUBSCRIBED, *SENT, got(0), got(2))),
    "the last one is missing": (broadcasts, (SUBSCRIBED, *SENT, got(0), got(1), ALL_SEEN)),
    "broadcasts out of order": (broadcasts, (SUBSCRIBED, *SENT, got(1), got(0), got(2))),
    "a broadcast twice": (broadcasts, (SUBSCRIBED, *SENT, got(0), got(0), got(1), got(2))),
}


BROKEN |= {
    "a later message with an id that is free again is gone": (
        at_least_once,
        (
            *(of("publish", detail={"dedup": "d", "scope": "until-acked"}), of("confirmed"), DELIVERED, of("acked")),
            of("publish", name="n", detail={"dedup": "d", "scope": "until-acked"}, tick=9.0),
            *(of("confirmed", name="n", tick=9.1), ("drained", {"queue": "q", "tick": 10.0})),
        ),
    ),
    "settled in another queue": (at_least_once, (*PUBLISHED, of("delivered", queue="other", claim=1), of("acked"), DRAINED)),
    "it came by another queue": (routing, (*PUBLISHED, of("delivered", queue="other", claim=1))),
    "behind a lower priority that was claimed later than it was there": (
        priorities,
        (
            *(*PUBLISHED, of("publish", name="n"), of("confirmed", name="n")),
            *(of("delivered", name="n", claim=1, detail={"priority": 1}), of("delivered", claim=1, detail={"priority": 9})),
        ),
    ),
    "an hour behind its eta": (
        lateness,
        (of("publish", detail={"eta": 100.0}, time=99.0), of("confirmed"), of("delivered", claim=1, tick=3600.0)),
    ),
    "ten minutes behind the death of its consumer": (
        lateness,
        (DELIVERED, fate("killed"), of("delivered", claim=2, process=B, redelivered=True, tick=602.0)),
    ),
}


@pytest.mark.parametrize("lines", KEPT.values(), ids=KEPT)
def test_a_history_that_keeps_all_promises_passes(lines):
    assert_kept(told(*lines))


@pytest.mark.parametrize(("promise", "lines"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_named_with_the_records_that_prove_it(promise, lines):
    history = told(*lines)
    found = judge(history)
    assert promise.NAME in {one.promise for one in found}
    for one in found:
        assert one.proof
        assert set(map(str, one.proof)) <= set(map(str, history))


@pytest.mark.parametrize(("consumes_again", "is_kept"), [(10.0, True), (5.0, False)])
def test_a_worker_reads_no_results_of_its_pool_processes_while_it_connects_anew(consumes_again, is_kept):
    history = told(
        *(of("start", detail={"pid": 5}), of("end", detail={"pid": 5}), fate("disconnected", tick=2.5)),
        *(("consuming", {"queue": "q", "tick": consumes_again}), ("child_killed", {"detail": {"pid": 5}, "tick": 9.0})),
        *(of("start", process=B, tick=11.0), of("end", process=B, tick=12.0)),
    )
    assert (not judge(history, Rules(acks=0, strict=True))) is is_kept


def test_a_report_counts_the_promises_and_shows_the_records():
    with pytest.raises(AssertionError, match=r"(?s)1 broken promises: at least once 1\n.*'m' was confirmed.*1\.0000 publish"):
        assert_kept(told(*PUBLISHED, DRAINED))


def test_a_record_is_read_as_it_was_written(tmp_path):
    record = Record(
        "delivered", 1.5, 7, name="m", queue="q", tag="t", claim=2, session="s", redelivered=True, detail={"priority": 3}
    )
    (tmp_path / "7").write_bytes(record.line() + b'{"kind": "ack')
    assert read_line(record.line()) == record
    assert list(History.read(tmp_path)) == [record]
