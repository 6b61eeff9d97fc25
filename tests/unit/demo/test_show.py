"""What the demo makes of its chapters; no server, no workers."""

import io
import os
import signal

import pytest

from celery_redis_plus.demo import show
from celery_redis_plus.demo.account import PlainAccount
from celery_redis_plus.demo.claims import Claim, Outcome
from celery_redis_plus.demo.stage import DemoFailed, Stage, own_url

TRUE = Claim.equal("answers", 2, 2)
FALSE = Claim.equal("answers", 1, 2)


class StageWithoutServer:
    embedded = True
    prefix = "crp-demo-1234:"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.left = True

    def logs(self):
        return {"one": ("[ERROR] the last line of its log",)}


@pytest.fixture
def run(monkeypatch):
    """Run the demo with other chapters; return the exit status and what was printed."""

    def run_chapters(*chapters):
        stream, stage = io.StringIO(), StageWithoutServer()
        monkeypatch.setattr(show, "Stage", lambda *_, **__: stage)
        monkeypatch.setattr(show, "make_account", lambda **_: PlainAccount(stream))
        status = show.run(chapters=chapters)
        assert stage.left
        return status, stream.getvalue()

    return run_chapters


def chapter(*claims):
    return lambda stage, account: Outcome("A chapter", list(claims), {"rate": "5/s"})


def test_true_claims_end_with_status_zero(run):
    status, output = run(chapter(TRUE), chapter(TRUE, TRUE))

    assert status == 0
    assert "3 of 3 claims are true" in output
    assert "last line of its log" not in output


def test_a_false_claim_ends_with_status_one_and_shows_the_logs(run):
    status, output = run(chapter(FALSE), chapter(TRUE))

    assert status == 1
    assert "FALSE answers: 1 (must be 2)" in output
    assert "[ERROR] the last line of its log" in output
    assert "1 of 2 claims are true" in output
    assert "See: A chapter" in output


@pytest.mark.parametrize("error", [DemoFailed("worker 'one' ended unexpectedly"), ConnectionError("gone")])
def test_a_chapter_that_fails_ends_the_demo_with_status_one_and_shows_the_logs(run, error):
    def fail(stage, account):
        raise error

    status, output = run(chapter(TRUE), fail, chapter(TRUE))

    assert status == 1
    assert f"cannot go on: {error}" in output
    assert "[ERROR] the last line of its log" in output
    assert "1 of 1 claims are true" in output
    assert "See: The demo ended early" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demo_with_its_number_and_leaves_the_handlers_as_they_were(run, number):
    before = signal.getsignal(number)

    status, _ = run(lambda stage, account: os.kill(os.getpid(), number))

    assert status == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("redis://h:1/2", "redisplus://h:1/2"),
        ("valkey://h", "redisplus://h"),
        ("redisplus://h", "redisplus://h"),
        ("rediss://h/1?ssl_cert_reqs=none", "redispluss://h/1?ssl_cert_reqs=none"),
        ("valkeys://h", "redispluss://h"),
        ("redis+socket:///tmp/s?virtual_host=1", "redisplus+socket:///tmp/s?virtual_host=1"),
        ("unix:///tmp/s", "redisplus+socket:///tmp/s"),
        ("REDISS://h", "redispluss://h"),
    ],
)
def test_a_given_url_is_used_with_our_own_scheme(given, used):
    assert own_url(given) == used


def test_a_url_with_transport_options_is_refused():
    with pytest.raises(DemoFailed, match="global_keyprefix"), Stage("redis://h?global_keyprefix=x", PlainAccount()):
        pass
