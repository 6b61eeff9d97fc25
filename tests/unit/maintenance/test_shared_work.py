"""The more processes there are, the more rarely each does what one of them can do for all."""

from celery_redis_plus.maintenance.shared_work import ENOUGH_PROCESSES, MOST_RARELY, SharedWork


def test_few_processes_keep_their_intervals():
    shared = SharedWork()
    for processes in (0, 1, ENOUGH_PROCESSES):
        shared.processes = processes
        assert shared.interval_s(20) == 20


def test_many_processes_together_never_do_it_more_rarely_than_enough_of_them():
    shared = SharedWork()
    for processes in range(ENOUGH_PROCESSES, 1000):
        shared.processes = processes
        assert processes / shared.interval_s(20) >= ENOUGH_PROCESSES / 20
        assert shared.interval_s(20) <= 20 * MOST_RARELY


def test_a_queue_that_nobody_consumes_here_is_everybody_s():
    shared = SharedWork()
    shared.processes, shared.consumers = 7, {"q": 2}
    assert (shared.consumers_of("q"), shared.consumers_of("other")) == (2, 7)
