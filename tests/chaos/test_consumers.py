"""What consumer management promises (issue D, Shows 2 to 5), in full: `--chaos-full`."""

import random
import signal
import statistics
import threading
import time

import pytest
from kombu import Connection

import celery_redis_plus  # noqa: F401 - makes kombu know the scheme
from tests.integration.consumers.test_limits import SAMPLE
from tests.integration.consumers.test_processes import assert_in_order
from tests.support.apps import JOURNAL_DB
from tests.support.consuming import consumers
from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until


@pytest.fixture
def crew(own_server, tmp_path):
    with own_server.client(JOURNAL_DB) as journal, consumers(own_server.url(), journal, tmp_path) as crew:
        yield crew


@pytest.fixture
def channel(own_server):
    with Connection(own_server.url()) as connection:
        yield connection.channel()


def test_eight_equal_consumers_share_a_steady_stream(*, full, crew, channel, figures):
    messages, tolerance = (10_000, 0.10) if full else (1_600, 0.15)
    for number in range(8):
        crew.start(f"c{number}", prefetch=1)
    crew.wait()
    for number in range(messages):
        publish(channel, "q", number)
        # Never more under way than there are consumers.
        wait_until(lambda number=number: crew.count() > number - 4, interval_s=0.0005)
    shares = crew.shares()
    mean = messages / 8
    worst = max(abs(share - mean) for share in shares.values()) / mean
    figures(f"{messages} messages to 8 processes: shares {sorted(shares.values())}, at most {worst:.1%} from the mean")
    assert len(shares) == 8
    assert worst <= tolerance


def test_order_survives_random_kills_of_the_single_active_consumer(*, full, crew, channel, figures):
    messages, kills = (20_000, 50) if full else (2_000, 5)
    single = {"x-single-active-consumer": True}
    options = {"arguments": single, "prefetch": 10, "connection_lost_grace": 1, "visibility_timeout": 300}
    declare(channel, "q", arguments=single)
    names = iter(range(10**6))
    for _ in range(3):
        crew.start(f"c{next(names)}", **options)
    crew.wait()
    producing = threading.Thread(target=lambda: publish(channel, "q", *range(messages)))
    producing.start()
    chance = random.Random(7)
    gaps = []
    for kill in range(kills):
        reached = (kill + chance.random()) * messages / (kills + 1)
        wait_until(lambda reached=reached: crew.count() >= reached, timeout_s=60)
        wait_until(lambda: crew.notes()[-1][0] in crew.processes)
        active = crew.notes()[-1][0]
        before, start = crew.count(), time.monotonic()
        crew.kill(active)
        crew.start(f"c{next(names)}", **options)
        # Near the end there may be fewer left than that.
        goal = min(before + 10, messages - 1)
        wait_until(lambda goal=goal: crew.count() > goal, timeout_s=60)
        if before < messages - 10:
            gaps.append(time.monotonic() - start)
    wait_until(lambda: len({body for _, body, _ in crew.notes()}) == messages, timeout_s=120)
    producing.join()
    notes = crew.notes()
    assert_in_order(notes, messages)
    again = sum(redelivered for _, _, redelivered in notes)
    figures(
        f"{kills} kills, {messages} messages in order; {again} redelivered, marked as such; the next consumer went on after "
        f"{statistics.median(gaps):.2f} s (median), {max(gaps):.2f} s (at most), with a heartbeat timeout of 1 s"
    )


def test_no_more_than_five_are_in_work_over_four_workers(*, full, own_server, crew, channel, figures):
    messages = 3_000 if full else 600
    limit = {"x-max-unacked": 5}
    declare(channel, "q", arguments=limit)
    for number in range(4):
        crew.start(f"c{number}", arguments=limit, prefetch=4, work_s=0.002)
    crew.wait()
    producing = threading.Thread(target=lambda: publish(channel, "q", *range(messages)))
    producing.start()
    samples = 0
    with own_server.client() as client:
        sample = client.register_script(SAMPLE)
        while crew.count() < messages:
            assert sample(keys=["messages_index:{q}", "most"]) <= 5
            samples += 1
        most = int(client.get("most"))
    producing.join()
    figures(f"{messages} messages, 4 workers, prefetch 4: at most {most} in work in {samples} samples; shares {crew.shares()}")
    assert most == 5


def test_a_rate_of_fifty_a_second_is_kept_and_nobody_spins(*, full, own_server, crew, channel, figures):
    seconds = 60 if full else 10
    limit = {"x-rate-limit": 50}
    declare(channel, "q", arguments=limit)
    for number in range(4):
        crew.start(f"c{number}", arguments=limit, prefetch=4)
    crew.wait()
    publish(channel, "q", *range(50 * (seconds + 10)))
    wait_until(lambda: crew.count() >= 20)
    with own_server.client() as client:
        client.config_resetstat()
        start, first = time.monotonic(), crew.count()
        wait_until(lambda: time.monotonic() - start >= seconds, timeout_s=seconds + 5, interval_s=0.01)
        got, elapsed = crew.count() - first, time.monotonic() - start
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    rate = got / elapsed
    figures(
        f"{got} messages in {elapsed:.1f} s: {rate:.2f} a second; {calls / elapsed:.0f} script calls a second for four workers"
    )
    assert rate == pytest.approx(50, rel=0.02)
    assert calls <= 2.6 * got + 10 * seconds


def test_a_lower_priority_takes_over_and_steps_back(*, full, crew, channel, figures):
    rounds = 50 if full else 10
    options = {"consumer_heartbeat_timeout": 2, "visibility_timeout": 6}
    crew.start("high", priority=10, prefetch=1, work_s=0.4, **options)
    crew.start("low", prefetch=10, **options)
    crew.wait()
    late_ms = []
    for number in range(rounds):
        publish(channel, "q", f"{number}-fills-high")
        wait_until(lambda number=number: crew.count() > 2 * number, interval_s=0.001)
        sent = time.monotonic()
        publish(channel, "q", f"{number}-goes-to-low")
        wait_until(lambda number=number: crew.count() > 2 * number + 1, interval_s=0.001)
        late_ms.append((time.monotonic() - sent) * 1000)
        time.sleep(0.6)
    shares = crew.shares()
    for what, number in (("frozen", signal.SIGSTOP), ("killed", signal.SIGKILL)):
        before, start = crew.count(), time.monotonic()
        crew.signal("high", number)
        publish(channel, "q", what)
        wait_until(lambda before=before: crew.count() > before)
        figures(f"{what}: the lower priority went on after {time.monotonic() - start:.2f} s (timeout 2 s, grace 5 s)")
        assert crew.notes()[-1][0] == "low"
        if number == signal.SIGSTOP:
            crew.signal("high", signal.SIGCONT)
            time.sleep(2)
    late_ms.sort()
    figures(f"saturated: low received after {statistics.median(late_ms):.1f} ms (median), {late_ms[-1]:.1f} ms (at most)")
    assert shares == {"high": rounds, "low": rounds}
    assert statistics.median(late_ms) < 50
