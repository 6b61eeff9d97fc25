import functools

import pytest

from celery_redis_plus.integration.patching import wrap


class Owner:
    def __init__(self):
        self.calls = []

    def method(self, value):
        self.calls.append(value)


def around(inner, value):
    inner(value + 1)


def with_wraps(method):
    @functools.wraps(method)
    def traced(*args):
        return method(*args)

    return traced


def with_closure(method):
    return lambda *args: [method(*args)]


def with_partial(method):
    return functools.partial(lambda inner, *args: inner(*args), method)


@pytest.mark.parametrize("apm", [with_wraps, with_closure, with_partial])
def test_a_method_that_a_tool_has_wrapped_over_ours_is_not_wrapped_again(apm):
    owner = Owner()
    for _ in range(3):
        wrap(owner, "method", around)
        owner.method = apm(owner.method)
    wrap(owner, "method", around)
    owner.method(1)

    assert owner.calls == [2]


def test_a_method_of_a_class_is_wrapped_once_for_all_its_objects():
    class Owned(Owner):
        pass

    def doubled(inner, owner, value):
        inner(owner, 2 * value)

    for _ in range(3):
        wrap(Owned, "method", doubled)
        Owned.method = with_wraps(Owned.method)
    owned, owner = Owned(), Owner()
    owned.method(3)
    owner.method(3)

    assert (owned.calls, owner.calls) == ([6], [3])
    assert Owned.method.__name__ == "method"


def test_a_method_that_was_put_back_is_wrapped_again():
    owner = Owner()
    wrap(owner, "method", around)
    del owner.method
    wrap(owner, "method", around)
    owner.method(1)

    assert owner.calls == [2]
