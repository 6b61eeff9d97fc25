import pytest

from tests.support.waiting import wait_until


def test_wait_until_returns_the_first_true_result():
    results = iter([0, "", 7, 8])

    assert wait_until(lambda: next(results), timeout_s=5) == 7


def test_wait_until_says_what_it_waited_for():
    with pytest.raises(TimeoutError, match=r"not within 0.01 s: the queue is empty \(last result: 0\)"):
        wait_until(lambda: 0, timeout_s=0.01, message="the queue is empty")


def test_wait_until_tries_at_least_once_without_time():
    assert wait_until(lambda: True, timeout_s=0)
