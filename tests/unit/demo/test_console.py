import io
import sys

import pytest

from celery_redis_plus.demo.console import PlainConsole
from celery_redis_plus.demo.expectations import Expectation
from celery_redis_plus.demo.main import make_console

TRUE = Expectation.equal("answers", 2, 2)
FALSE = Expectation.equal("answers", 1, 2)


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture(params=["plain", "rich"])
def console(request, stream):
    if request.param == "plain":
        return PlainConsole(stream)
    console = pytest.importorskip("rich.console")
    from celery_redis_plus.demo.terminal import RichConsole

    return RichConsole(console.Console(file=stream, width=100))


def test_account_prints_everything_as_it_is(console, stream):
    console.scenario("A [bold]scenario[/]", "begins")
    console.say("see [1]")
    console.table(("worker [x]", "count"), [("one", "20"), ("two", "7")])
    console.log("one", "[INFO/MainProcess] ready [/]")
    console.verdict("all [good]", good=True)

    output = stream.getvalue()
    for text in ("A [bold]scenario[/]", "see [1]", "worker [x]", "20", "one | [INFO/MainProcess] ready [/]", "all [good]"):
        assert text in output


def test_account_tells_true_claims_from_false_ones(console, stream):
    console.expectation(TRUE)
    assert "FALSE" not in stream.getvalue()

    console.expectation(FALSE)
    assert "FALSE" in stream.getvalue()
    assert str(FALSE) in stream.getvalue()


def test_account_shows_progress(console, stream):
    with console.progress("executed", 2000) as progress:
        progress(0)
        progress(2000)

    assert "executed" in stream.getvalue()


def test_plain_progress_is_a_line_for_each_quarter(stream):
    with PlainConsole(stream).progress("executed", 2000) as progress:
        for done in range(0, 2001, 100):
            progress(done)

    assert stream.getvalue().splitlines() == [f"  executed: {done} of 2,000" for done in ("500", "1,000", "1,500", "2,000")]


def test_plain_progress_that_jumps_is_told_once(stream):
    with PlainConsole(stream).progress("ended", 10) as progress:
        progress(9)
        progress(9)

    assert stream.getvalue() == "  ended: 9 of 10\n"


def test_plain_table_is_aligned(stream):
    PlainConsole(stream).table(("worker", "count"), [("one", "20"), ("sixteen", "7")])

    assert stream.getvalue().splitlines() == [
        "  worker    count",
        "  -------   -----",
        "  one          20",
        "  sixteen       7",
    ]


def test_no_terminal_gets_plain_lines(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)

    assert isinstance(make_console(), PlainConsole)


def test_terminal_gets_plain_lines_where_asked_for_or_where_rich_is_missing(monkeypatch, stream):
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", stream)

    assert isinstance(make_console(plain=True), PlainConsole)
    monkeypatch.delitem(sys.modules, "celery_redis_plus.demo.terminal", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(make_console(), PlainConsole)
