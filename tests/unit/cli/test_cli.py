import re
from importlib.metadata import version

import click
import pytest

from celery_redis_plus.cli import main
from celery_redis_plus.errors import CeleryRedisPlusError, ServerUnreachable
from celery_redis_plus.installation import DISTRIBUTION


@pytest.fixture
def thing(monkeypatch):
    """Let `celery-redis-plus thing` run a function."""

    def define(run):
        command = click.command("thing")(click.option("--size", type=click.IntRange(1, 5))(run))
        monkeypatch.setattr(main.CommandLine, "list_commands", lambda *_: ["thing"])
        monkeypatch.setattr(main.CommandLine, "get_command", lambda *_: command)

    return define


def all_commands():
    context = click.Context(main.commands)
    return {name: main.commands.get_command(context, name) for name in main.commands.list_commands(context)}


def leaves(path, command):
    if not isinstance(command, click.Group):
        return [(path, command)]
    return [leaf for name, inner in command.commands.items() for leaf in leaves((*path, name), inner)]


LEAVES = [leaf for name, command in all_commands().items() for leaf in leaves((name,), command)]


def test_every_module_in_commands_is_a_command_with_a_short_help():
    assert {"queues", "messages", "dead-letters", "demo"} <= set(all_commands())
    assert all(command.short_help and command.help for command in all_commands().values())


def test_every_command_has_json_but_those_that_write_files_or_go_on():
    without = {path for path, command in LEAVES if "--json" not in [name for option in command.params for name in option.opts]}

    assert without == {
        ("demo",),
        ("exporter",),
        ("spark",),
        ("web",),
        ("web-user",),
        ("events", "export"),
        ("export", "definitions"),
    }


def test_what_deletes_asks_first_and_can_be_tried():
    having = {path: {name for option in command.params for name in option.opts} for path, command in LEAVES}
    destructive = {path for path in having if path[-1] in {"purge", "delete", "cancel", "uninstall"}}

    # A kick deletes nothing, and may have a task run twice.
    assert {path for path, options in having.items() if "--yes" in options} == {*destructive, ("messages", "kick")}
    assert [path for path in destructive if "--dry-run" not in having[path]] == []


def test_every_command_has_help(capsys):
    without = [path for path, _ in LEAVES if main.main([*path, "--help"]) != 0 or not capsys.readouterr().out]

    assert without == []


def test_help_lists_the_commands(capsys):
    assert main.main(["--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"demo {all_commands()['demo'].short_help}" in words


def test_version_is_the_distribution_s(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"celery-redis-plus {version(DISTRIBUTION)}"


def test_no_command_prints_help_and_fails(capsys):
    assert main.main([]) == 2
    assert "Usage: celery-redis-plus" in capsys.readouterr().out


def test_unknown_command_fails(capsys):
    assert main.main(["nonesuch"]) == 2
    assert "nonesuch" in capsys.readouterr().err


def test_command_gets_its_options_and_gives_the_exit_status(thing):
    seen = []

    def run(size):
        seen.append(size)
        return 7

    thing(run)

    assert main.main(["thing", "--size", "3"]) == 7
    assert seen == [3]


def test_a_value_that_is_not_allowed_is_named_with_its_option_and_what_is_allowed(thing, capsys):
    thing(lambda size: 0)

    assert main.main(["thing", "--size", "6"]) == 2
    error = capsys.readouterr().err
    assert "--size" in error
    assert "6 is not in the range 1<=x<=5" in error


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (CeleryRedisPlusError("there is no queue"), 1, "there is no queue"),
        (ServerUnreachable("the server is not there"), 3, "the server is not there"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (BrokenPipeError(), 141, None),
    ],
)
def test_errors_are_one_line_and_their_exit_status(thing, capfd, error, status, text):
    def run(size):
        raise error

    thing(run)

    assert main.main(["thing"]) == status
    assert capfd.readouterr().err == ("" if text is None else f"celery-redis-plus thing: {text}\n")


def test_a_defect_keeps_its_traceback(thing):
    def run(size):
        raise ZeroDivisionError

    thing(run)

    with pytest.raises(ZeroDivisionError):
        main.main(["thing"])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1", "86401", "1e999"])
def test_an_interval_that_no_clock_can_wait_for_is_refused(value, capsys):
    assert main.main(["queues", "--watch", f"--interval={value}"]) == 2
    assert re.search(r"'--interval': \S+ is not in the range 0.1<=x<=86400", capsys.readouterr().err)


@pytest.mark.parametrize("command", [("messages", "list", "q"), ("dead-letters", "list", "q")], ids=" ".join)
@pytest.mark.parametrize("value", ["99999999999999999999", "1000000001", "0", "-5"])
def test_a_limit_that_cannot_be_counted_to_is_refused(command, value, capsys):
    assert main.main([*command, f"--limit={value}"]) == 2
    assert f"'--limit': {value} is not in the range 1<=x<=1000000000" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "inf", "-5s", "99999999999999999999d", "9" * 400, "36526d"])
def test_a_duration_beyond_a_hundred_years_is_refused(value, capsys):
    assert main.main(["dead-letters", "list", "q", f"--older-than={value}"]) == 2
    error = capsys.readouterr().err
    assert f"'--older-than': '{value:.100}' is not allowed; allowed: a number with s, m, h or d" in error
    assert "up to 36525d" in error


@pytest.mark.parametrize(
    ("words", "offered"),
    [("que", "queues"), ("dead-letters rep", "replay"), ("doctor --ro", "--role"), ("doctor --role p", "publisher")],
)
def test_the_shell_completes_commands_and_options(words, offered, monkeypatch, capsys):
    line = f"celery-redis-plus {words}"
    for name, value in (
        ("_CELERY_REDIS_PLUS_COMPLETE", "bash_complete"),
        ("COMP_WORDS", line),
        ("COMP_CWORD", str(len(line.split()) - 1)),
    ):
        monkeypatch.setenv(name, value)
    main.main([])
    assert f"plain,{offered}" in capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("celery-redis-plus dead-l", ["dead-letters"]),
        ("celery-redis-plus messages can", ["cancel"]),
        ("celery-redis-plus messages list --st", ["--state"]),
        ("celery-redis-plus messages list orders --state d", ["delayed"]),
    ],
)
def test_a_shell_completes_commands_options_and_values(words, completed, monkeypatch, capsys):
    """The page has the lines for Bash, Zsh and Fish."""
    monkeypatch.setenv("_CELERY_REDIS_PLUS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    main.main([])
    assert [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()] == completed
