from __future__ import annotations

import os
import threading

import pytest

from celery_redis_plus.connection import unpatched
from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.connection.waker import Waker


@pytest.fixture
def waker():
    waker = Waker()
    yield waker
    waker.close()


def readable(waker, timeout_s=0.0):
    return bool(wait_readable([waker.fileno()], timeout_s))


def test_it_is_readable_from_wake_until_clear(waker):
    assert not readable(waker)
    waker.wake()
    waker.wake()
    assert readable(waker)
    waker.clear()
    assert not readable(waker)


def test_a_wake_while_it_is_cleared_is_not_lost_for_later(waker, monkeypatch):
    """The byte of a wake that comes between the two halves of a clear must not be eaten while its flag stays up."""
    read = unpatched.read

    def read_and_be_woken(descriptor, size):
        waker.wake()
        return read(descriptor, size)

    waker.wake()
    monkeypatch.setattr(unpatched, "read", read_and_be_woken)
    waker.clear()
    monkeypatch.undo()
    waker.wake()
    assert readable(waker)


def test_many_threads_wake_one_that_clears_and_no_work_stays_undone(waker):
    todo: list[int] = []
    done = 0
    threads = [threading.Thread(target=lambda: [(todo.append(1), waker.wake()) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while done < 8000:
        assert readable(waker, 5.0), f"asleep with {len(todo)} things to do"
        waker.clear()
        while todo:
            todo.pop()
            done += 1
    for thread in threads:
        thread.join()


def test_a_closed_one_can_be_woken_and_cleared(waker):
    waker.close()
    waker.wake()
    waker.clear()
    waker.close()


def test_a_wake_before_the_first_look_is_seen_by_it():
    waker = Waker()
    waker.wake()
    assert readable(waker)
    waker.close()


def fork(child):
    """Run `child` in a child process; return whether all that it checked was true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if child() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def replace_all(descriptors):
    """Close these, as a daemon does with all that it has, and open others of the same numbers; return their readable end."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    for descriptor in descriptors:
        # Closes it first.
        os.dup2(writer, descriptor)
    return reader


def both_ends(waker):
    waker.fileno()
    return waker._pipe.reader, waker._pipe.writer  # noqa: SLF001


def test_a_child_has_a_pipe_of_its_own(waker):
    numbers = both_ends(waker)

    def child():
        waker.wake()
        return readable(waker) and both_ends(waker)

    assert fork(child)
    assert not readable(waker)
    assert both_ends(waker) == numbers


@pytest.mark.parametrize("use", ["wake", "clear", "close", "__del__"])
def test_descriptors_that_were_closed_behind_its_back_are_left_to_their_new_owner(waker, use):
    def child():
        ends = both_ends(waker)
        reader = replace_all(ends)
        mine = [os.fstat(end) for end in ends]
        getattr(waker, use)()
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
        return [os.fstat(end) for end in ends] == mine

    assert fork(child)


def test_a_fork_after_all_descriptors_were_closed_leaves_those_of_others_open(waker):
    def daemon():
        # What it has inherited, it has let go of at the fork; in its own child this shall not happen a second time.
        ends = both_ends(waker)
        replace_all(ends)
        return fork(lambda: all(os.fstat(end) for end in ends) and waker.fileno() not in ends)

    assert fork(daemon)


def test_it_works_again_where_its_descriptors_were_closed(waker):
    def child():
        replace_all(both_ends(waker))
        waker.wake()
        return readable(waker)

    assert fork(child)
