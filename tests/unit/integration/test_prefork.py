from types import SimpleNamespace

import celery
import pytest

from celery_redis_plus.integration.prefork_pool import install_prefork_guard


class Job:
    def __init__(self, accepted):
        self._accepted = accepted

    def accepted(self):
        return self._accepted


@pytest.fixture
def pool():
    """A pool whose flush forgets all jobs, as in Celery 5.6."""
    cache = {1: Job(accepted=True), 2: Job(accepted=False)}
    return SimpleNamespace(flush=cache.clear, _pool=SimpleNamespace(_cache=cache))


def test_running_jobs_survive_a_flush_of_celery_5_6(pool, monkeypatch):
    monkeypatch.setattr(celery, "VERSION", SimpleNamespace(major=5, minor=6))
    install_prefork_guard(pool)
    wrapped = pool.flush
    install_prefork_guard(pool)
    pool.flush()

    assert pool.flush is wrapped
    assert list(pool._pool._cache) == [1]  # noqa: SLF001 - as Celery names them


def test_what_a_later_version_has_forgotten_by_itself_stays_forgotten(pool, monkeypatch):
    """It keeps what was accepted; what it drops all the same belongs to a child that died."""
    monkeypatch.setattr(celery, "VERSION", SimpleNamespace(major=5, minor=7))
    install_prefork_guard(pool)
    pool.flush()

    assert not pool._pool._cache  # noqa: SLF001 - as Celery names them


def test_pool_without_jobs_to_forget_is_left_alone(monkeypatch):
    monkeypatch.setattr(celery, "VERSION", SimpleNamespace(major=5, minor=6))
    pool = SimpleNamespace(flush=None)
    install_prefork_guard(pool)

    assert pool.flush is None
