import argparse
from importlib.metadata import version

import pytest

from celery_redis_plus.cli import command, main
from celery_redis_plus.cli.command import Command
from celery_redis_plus.errors import CeleryRedisPlusError


def make_command(run, add_arguments=lambda parser: None):
    return Command(summary="does a thing", description="Does a thing, at length.", add_arguments=add_arguments, run=run)


@pytest.fixture
def commands(monkeypatch):
    found = {}
    monkeypatch.setattr(main, "found_commands", lambda: found)
    return found


def test_every_module_in_commands_is_a_command():
    found = command.found_commands()

    assert "demo" in found
    assert all(isinstance(item, Command) and item.summary and item.description for item in found.values())


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["--help"])

    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"demo {command.found_commands()['demo'].summary}" in words


def test_help_of_a_command_describes_it(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["demo", "--help"])

    output = capsys.readouterr().out
    assert ended.value.code == 0
    assert command.found_commands()["demo"].description in output
    assert "--url" in output


def test_version_is_the_distribution_s(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == f"celery-redis-plus {version('celery-redis-plus')}"


def test_no_command_prints_help_and_fails(capsys):
    assert main.main([]) == 2
    assert "usage: celery-redis-plus" in capsys.readouterr().out


def test_unknown_command_fails(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["nonesuch"])

    assert ended.value.code == 2
    assert "nonesuch" in capsys.readouterr().err


def test_command_gets_its_arguments_and_gives_the_exit_status(commands):
    seen = []

    def run(arguments: argparse.Namespace) -> int:
        seen.append(arguments.size)
        return 7

    commands["thing"] = make_command(run, lambda parser: parser.add_argument("--size", type=int))

    assert main.main(["thing", "--size", "3"]) == 7
    assert seen == [3]


def test_our_errors_are_printed_without_a_traceback(commands, capsys):
    def run(arguments):
        raise CeleryRedisPlusError("the server is not there")

    commands["thing"] = make_command(run)

    assert main.main(["thing"]) == 1
    assert capsys.readouterr().err == "celery-redis-plus thing: the server is not there\n"


def test_interrupted_command_says_so(commands):
    def run(arguments):
        raise KeyboardInterrupt

    commands["thing"] = make_command(run)

    assert main.main(["thing"]) == 130
