import sys

import pytest

from celery_redis_plus.demo.console import Console
from celery_redis_plus.demo.expectations import Expectation

TRUE = Expectation.equal("answers", 2, 2)
FALSE = Expectation.equal("answers", 1, 2)


@pytest.fixture(params=[False, True], ids=["log", "terminal"])
def is_terminal(request, monkeypatch, capsys):
    # Not of one stream: a test has another than its fixtures.
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: request.param)
    return request.param


@pytest.fixture
def console(is_terminal):
    return Console()


def test_account_prints_everything_as_it_is(console, capsys):
    console.scenario("A [bold]scenario[/]", "begins")
    console.say("see [1]")
    console.log("one", "[INFO/MainProcess] ready [/]")
    console.verdict("all [good]", good=True)

    output = capsys.readouterr().out
    for text in ("A [bold]scenario[/]", "see [1]", "one | [INFO/MainProcess] ready [/]", "all [good]"):
        assert text in output


def test_account_tells_true_claims_from_false_ones(console, capsys):
    console.expectation(TRUE)
    assert "FALSE" not in capsys.readouterr().out

    console.expectation(FALSE)
    assert f"FALSE {FALSE}" in capsys.readouterr().out


def test_account_shows_progress(console, is_terminal, capsys):
    with console.progress("executed", 2000) as progress:
        for done in (0, 500, 2000, 2000):
            progress(done)

    output = capsys.readouterr().out
    assert "executed" in output
    assert ("2000/2000" in output) is is_terminal


@pytest.mark.parametrize("plain", [False, True])
def test_colours_are_for_terminals_and_not_for_plain_lines(is_terminal, capsys, plain):
    Console(plain=plain).verdict("all is well", good=True)

    assert ("\x1b" in capsys.readouterr().out) is (is_terminal and not plain)
