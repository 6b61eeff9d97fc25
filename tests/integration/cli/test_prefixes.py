"""Every command keeps to the application whose prefix stands in the URL, or in `--prefix`.

The commands are those that there are: a new one is tried as well. The server tells what they touch: their user may read and write
the keys of one prefix, and it logs each look at another key.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from urllib.parse import urljoin, urlsplit

import click
import pytest

from celery_redis_plus.cli import exit_status
from celery_redis_plus.cli.main import commands, main
from celery_redis_plus.connection.broker_at import broker_at
from celery_redis_plus.errors import OptionError
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.transport.once_sender import OnceSender
from tests.support.inbox import declare, publish
from tests.support.program import forked

pytestmark = pytest.mark.same_everywhere

#: What a command needs beside its required arguments, so that it looks at its broker.
NEEDED = {
    "dead-letters delete": ["--all"],
    "dead-letters replay": ["--all"],
    "exporter": ["--latencies"],
    "messages prioritize": ["5"],
    "messages cancel": ["an-id"],
    "messages kick": ["an-id", "--yes"],
    "messages move": ["an-id"],
    "messages reschedule": ["--in", "1m"],
    "migrate": ["--status"],
}
#: They run until they are ended, and look at the broker when they are asked: for the URL that they print, and then for this path.
SERVERS = {"exporter": "/metrics", "web": "/"}
#: They have a broker of their own, or take its URL behind their name.
OTHERS = {"demo", "spark", "web-user"}
#: Of a broker with several shards, whose prefixes begin with a brace.
OF_SHARDS = {"shards raise"}


def leaves(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands with their names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


COMMANDS = {name: command for name, command in leaves(commands) if name not in OTHERS | OF_SHARDS}


def arguments_of(name: str, command: click.Command, folder: str) -> list[str]:
    """Return a line that runs the command: its name, and what it requires."""
    line = name.split()
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name == "yes":
            line.append("--yes")
        elif isinstance(parameter, click.Option) and "--no-follow" in parameter.secondary_opts:
            line.append("--no-follow")
        elif parameter.required and isinstance(parameter, click.Option):
            line += [parameter.opts[-1], folder if isinstance(parameter.type, click.Path) else "celery"]
        elif parameter.required and not isinstance(parameter.type, click.IntRange):
            line.append("celery")
    return line + NEEDED.get(name, [])


@pytest.fixture
def broker(connect, redis_client, broker_url):
    """The URL of a user who may use the keys of the prefix `shop:`; there is another application without one."""
    redis_client.acl_setuser("shop", reset=True, enabled=True, passwords=["+secret"], categories=["+@all"], keys=["shop:*"])
    for options in ({"global_keyprefix": "shop:"}, {}):
        channel = connect(event_log=True, **options).channel()
        declare(channel, "celery")
        publish(channel, "celery", "x")
    url = urlsplit(broker_url)
    yield url._replace(netloc=f"shop:secret@{url.netloc.rpartition('@')[2]}").geturl()
    redis_client.acl_deluser("shop")


def ask(line: list[str], path: str) -> None:
    """Start a command that serves a page, and read that as its user does."""
    with forked("celery_redis_plus", *line) as process:
        try:
            found = None
            while found is None:
                found = re.search(r"http://\S+", process.stderr.readline())
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            for url in (found[0], urljoin(found[0], path)):
                with browser.open(url, timeout=30) as page:
                    page.read()
        finally:
            process.terminate()
            process.stderr.read()


@pytest.mark.not_on("all", reason="its users have other rights")
@pytest.mark.parametrize("by", ["url", pytest.param("option", marks=pytest.mark.weekly)])
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_touches_the_keys_of_its_prefix_alone(broker, redis_client, tmp_path, monkeypatch, name, by):
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[name]
    assert {"broker", "prefix"} <= {parameter.name for parameter in command.params}, "use cli.target.with_target"
    target = [f"{broker}?global_keyprefix=shop:"] if by == "url" else [broker, "--prefix", "shop:"]
    if name == "import definitions":
        main(["--broker", *target, "export", "definitions", "--output", "celery"])
    redis_client.acl_log_reset()
    redis_client.config_resetstat()
    if name in SERVERS:
        ask([*name.split(), *NEEDED.get(name, []), "--port", "0", "--broker", *target], SERVERS[name])
    else:
        main(["--broker", *target, *arguments_of(name, command, str(tmp_path))])
    denied = [(entry["object"], entry["context"]) for entry in redis_client.acl_log() if entry["reason"] == "key"]
    assert denied == []
    stats = redis_client.info("stats")
    assert stats["keyspace_hits"] + stats["keyspace_misses"] > 0, f"{name} has not looked at its broker: see NEEDED"


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_command_that_takes_no_broker_refuses_one_before_it(name, capsys):
    line = {"demo": [], "spark": ["report"], "web-user": ["ada", "--file", "users"]}[name]
    assert main(["--broker", "redis://127.0.0.1:1", name, *line]) == exit_status.USAGE
    assert f"--broker before {name} has no effect" in capsys.readouterr().err


@pytest.mark.parametrize("use", [broker_at, EventLog, OnceSender])
def test_a_url_and_a_prefix_that_name_two_applications_are_refused(use):
    with pytest.raises(OptionError, match="global_keyprefix=a:, and prefix 'b:' is given beside it"):
        use("redisplus://127.0.0.1:1/0?global_keyprefix=a:", prefix="b:")


def test_readers_and_senders_take_the_prefix_of_a_url(broker_url, redis_client):
    url = f"{broker_url}?global_keyprefix=shop:"
    with EventLog(url) as log:
        assert log.keys.prefix == "shop:"
    with OnceSender(url) as sender:
        sender.send("orders", "1", b"x")
    assert redis_client.exists("shop:queue:{orders}") == 1
