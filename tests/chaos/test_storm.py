"""The long run: workers, server and network fail at random while tasks run; nothing is lost, and every repeat has its reason.

`tox -e chaos -- --seconds 600` spends so long on it, `--chaos-full` has the counts of docs/design/0008-chaos.md.
"""

import random
import time
from contextlib import ExitStack

import pytest

from tests.chaos.crew import Crew
from tests.chaos.publishers import Publisher
from tests.chaos.state import check_invariants, empty, leftovers, places, remaining
from tests.chaos.storm import PARTITIONS, Storm
from tests.support.judge.executions import Judgement, Verdict, count
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

QUEUE = "celery"
VISIBILITY_TIMEOUT_S = 5
WORKERS = 3
CONCURRENCY = 2
PREFETCH = CONCURRENCY * 4
POOLS = ["solo", "threads", "prefork"]
OPTIONS = {"visibility_timeout": VISIBILITY_TIMEOUT_S, "socket_timeout": 2, "socket_connect_timeout": 2}
#: fault -> how often it strikes each pool in the short form, and in the full one; the latter is its weight in a run by the clock.
FAULTS = {
    "kill_worker": (4, 102),
    "kill_server": (2, 12),
    "restart_server": (1, 6),
    "kill_client": (4, 30),
    "pause_clients": (1, 6),
    "freeze_server": (1, 6),
    "flush_scripts": (1, 6),
    "fill_memory": (1, 6),
    "freeze_worker": (1, 8),
    "stop_worker": (1, 8),
    "cut_off": (1, 4),
    "blackhole": (1, 6),
    "reset": (2, 6),
    "refuse": (1, 4),
    "slow": (1, 3),
    "delay": (1, 3),
    "lose_replies": (2, 8),
    "cut_bytes": (2, 8),
}
SHORT_TASKS, FULL_TASKS = 1_500, 34_000
#: Seconds between two faults, on the average: where there are many, workers need some time to work at all.
REST_S, FULL_REST_S = 0.3, 1.2
#: Seconds until what is left has run, after the last fault.
PATIENCE_S = 120
#: Tasks that are published and have not ended, at most.
BACKLOG = 1_000
#: Repeats of tasks that had ended, for each kill of a worker (docs/design/0008-chaos.md).
ENDED_REPEATS = {"solo": 0.1, "threads": 0.1, "prefork": 0.4}
#: In a short run a few are no proof of a rate.
ENDED_REPEATS_AT_LEAST = 10


def length(chooser):
    """Most tasks are short; some outlive any outage, and a few the visibility timeout."""
    part = chooser.random()
    if part < 0.95:
        return chooser.uniform(0, 0.003)
    if part < 0.99:
        return chooser.uniform(0.01, 0.05)
    if part < 0.9995:
        return chooser.uniform(0.2, 0.5)
    return VISIBILITY_TIMEOUT_S * 1.3


def schedule(full, seconds, chooser):
    """Yield the faults of a run."""
    if seconds:
        until = time.monotonic() + seconds / len(POOLS)
        while time.monotonic() < until:
            yield chooser.choices(list(FAULTS), [weight for _, weight in FAULTS.values()])[0]
        return
    faults = [fault for fault, times in FAULTS.items() for _ in range(times[full])]
    chooser.shuffle(faults)
    yield from faults


def account(repeats, storm):
    """What happened around these repeats."""
    lines = []
    for repeat in repeats:
        lines += ["", str(repeat.before), str(repeat.again)]
        since, until = repeat.before.start - VISIBILITY_TIMEOUT_S * 2, repeat.again.start + 1
        lines += [f"  {at:.3f} {text}" for at, text in storm.diary if since <= at <= until]
    return "\n".join(lines)


def weather(storm, faults, rest_s, ledger):
    """Let all `faults` strike, and end when the last one is over."""
    for fault in faults:
        storm.strike(fault)
        time.sleep(random.uniform(0, 2 * rest_s))
        ledger.read()
        judge(storm)
    storm.calm()
    judge(storm)


def judge(storm):
    """Fail with the logs of workers that ended by themselves, and with what a fault met."""
    found = storm.crew.ended_by_themselves() + storm.failures
    assert not found, "\n\n".join(found)


def stuck(seed, missing, client, storm):
    """What is left where nothing more happens, what befell it, and what its workers say."""
    diary = "\n".join(f"  {at:.3f} {text}" for at, text in storm.diary)
    logs = "\n\n".join(f"{member.life}:\n{member.worker.tail(40)}" for member in storm.crew.members)
    return f"seed {seed}, missing {missing[:20]}, {remaining(client, QUEUE)}\n{diary}\n\n{logs}"


def finish(publishers, ledger, *, at_once):
    """Wait until all is published; return the names of the tasks."""
    for publisher in publishers:
        if at_once:
            publisher.stopping.set()
        # They go by what was read.
        wait_until(lambda publisher=publisher: ledger.read() and not publisher.is_alive(), 1800, interval_s=0.1)
        publisher.finish()
    return {name for publisher in publishers for name in publisher.names()}


@pytest.mark.judged(acks=PREFETCH, strict=True)
@pytest.mark.parametrize("pool", POOLS)
def test_nothing_is_lost_whatever_fails(*, pool, full, seconds, seed, start_server, ledger, chaos_app, chaos_worker, figures):
    chooser = random.Random(seed)
    server = start_server({"appendonly": "yes", "appendfsync": "always"})
    most = None if seconds else (FULL_TASKS if full else SHORT_TASKS) // 2
    config = {"task_acks_late": True, "broker_transport_options": OPTIONS}

    def worker(url):
        return chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, pool=pool, concurrency=CONCURRENCY, config=config)

    def enough():
        return storm.memory_full or sum(publisher.sent for publisher in publishers) - len(ledger.counted("end")) > BACKLOG

    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(lambda: server.port)) for _ in range(WORKERS + 1)]
        crew = Crew(worker, proxies[1:])
        crew.start()
        app = chaos_app(proxies[0].url(), visibility_timeout=VISIBILITY_TIMEOUT_S)
        publishers = [Publisher(app, name, length=length, most=most, enough=enough, delayed=0.03) for name in "ab"]
        storm = Storm(server, crew, proxies[0], VISIBILITY_TIMEOUT_S, seed, senders=publishers)
        began = time.monotonic()
        for publisher in publishers:
            publisher.start()
        weather(storm, schedule(full, seconds, chooser), FULL_REST_S if full else REST_S, ledger)
        names = finish(publishers, ledger, at_once=bool(seconds))
        with server.client() as client:
            wait_until(
                lambda: names <= set(ledger.ended()) and empty(client, QUEUE),
                PATIENCE_S,
                lambda: stuck(seed, sorted(names - set(ledger.ended())), client, storm),
                interval_s=0.1,
            )
            took_s = time.monotonic() - began
            assert crew.stop() == [0] * WORKERS
            check_invariants(client)
            left = leftovers(client)
            dead = places(client, QUEUE)["dead"]
    repeats = Judgement(crew.lives, acks=PREFETCH).repeats(ledger.read())
    verdicts = count(repeats)
    figures(
        f"seed {seed}, {took_s:.0f} s, {len(names)} tasks published, {len(ledger.started())} executed, "
        f"lost {len(names - set(ledger.ended()))}, dead-lettered {dead}, "
        f"partitions {sum(storm.done[name] for name in PARTITIONS)}; {dict(sorted(storm.done.items()))}; "
        f"repeats {sum(verdicts.values())}: " + ", ".join(f"{verdict.value} {number}" for verdict, number in verdicts.items())
    )
    assert storm.failures == []
    assert left == []
    illegal = [repeat for repeat in repeats if repeat.verdict is Verdict.ILLEGAL]
    assert illegal == [], account(illegal, storm)
    assert "please report it" not in "".join(member.worker.log() for member in crew.members)
    assert verdicts[Verdict.LAST_ACKS] <= max(ENDED_REPEATS_AT_LEAST, ENDED_REPEATS[pool] * storm.done["kill_worker"])
