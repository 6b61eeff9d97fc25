"""Which broker a command acts on: the app's, the one whose URL is given, or that of the environment."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from celery_redis_plus.errors import ShardUnreachable

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.event_log.event_logs import EventLogs
    from celery_redis_plus.shards.raising import ShardsRaise

#: Where the URL is taken from when neither it nor an app is given; Celery's own name for it.
URL_VARIABLE = "CELERY_BROKER_URL"
DEFAULT_URL = "redis://localhost:6379/0"
#: Under which name click's context has the options that stand before the command.
GIVEN_BEFORE = "celery_redis_plus.target"


@dataclass(frozen=True, slots=True)
class Target:
    """The broker that is meant: an app's, or a URL with a key prefix."""

    #: A Celery app, or None.
    app: Any
    url: str
    prefix: str
    #: The number of the one shard that is meant; None: all.
    shard: int | None = None

    def admin(self) -> BrokerAdmin:
        """Return a connection to it, a context manager. Raises as `BrokerAdmin` and `BrokerAdmin.of_app` do."""
        # Not at the top: every command declares its options by this file, `--help` included.
        from celery_redis_plus.admin.shard_admin import admin_of_app, admin_of_url

        if self.app is None:
            return admin_of_url(self.url, prefix=self.prefix, shard=self.shard)
        return admin_of_app(self.app, shard=self.shard)

    def shards_raise(self, number: int, patience_s: float) -> ShardsRaise:
        """Return the raise of the number of its shards, a context manager. Raises as `ShardsRaise`, and as `BrokerAdmin`."""
        from celery_redis_plus.admin.shard_admin import raise_of_app, raise_of_url

        if self.app is None:
            return raise_of_url(self.url, number, prefix=self.prefix, patience_s=patience_s)
        return raise_of_app(self.app, number, patience_s=patience_s)

    def display(self) -> str:
        """Return what the broker is called, without its password. Raises as `BrokerAdmin` does."""
        from celery_redis_plus.connection.address import Address

        if self.app is None:
            return Address.from_url(self.url).display()
        with self.app.connection_for_write() as connection:
            return str(connection.as_uri())

    def kombu_options(self) -> dict[str, Any]:
        """Return the app's transport options, those of kombu's own transport included; none without an app."""
        return {} if self.app is None else dict(self.app.conf.broker_transport_options or {})

    def declare(self, queues: Collection[str]) -> None:
        """Declare those of the app's own queues that are among `queues`. Raises as `declare_queues` does."""
        from celery_redis_plus.integration.app_broker import declare_queues

        if self.app is not None:
            declare_queues(self.app, queues)

    def event_logs(self, *, partial: bool = False) -> EventLogs:
        """Return its lifecycle events, of all shards or of the one that is named, a context manager.

        Args:
            partial: go on without a shard that cannot be reached.

        Raises as `event_logs.events_at` and `BrokerAdmin.of_app` do.
        """
        from celery_redis_plus.shards.event_logs import ShardEventLogs, events_at

        if self.app is None:
            return events_at(self.url, self.prefix, shard=self.shard, partial=partial)
        from celery_redis_plus.event_log.stream import EventLog
        from celery_redis_plus.integration.app_broker import reached_shards

        with reached_shards(self.app, self.shard) as found:
            address = next((session.address for _, session in found if not isinstance(session, ShardUnreachable)), None)
            if address is None:
                raise next(session for _, session in found if isinstance(session, ShardUnreachable))
            logs = {place.number: EventLog.at(address, place.options) for place, _ in found}
        return ShardEventLogs(logs, found[0][0].options.shards, partial=partial)


def with_target(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add `--app`, `--broker` (or `--url`), `--prefix` and `--shard` to a command; its first argument is a `Target` of them."""

    @click.option("-A", "--app", metavar="MODULE", help="The Celery app, as `celery -A` takes it. Its connection is used.")
    @click.option(
        "-b",
        "--broker",
        "--url",
        metavar="URL",
        help=f"The broker, without an app. Default: ${URL_VARIABLE}, else {DEFAULT_URL}.",
    )
    @click.option("--prefix", metavar="TEXT", help="The app's option global_keyprefix.")
    @click.option("--shard", metavar="N", type=click.IntRange(min=0), help="One shard of a broker with several, by its number.")
    @click.pass_context
    @functools.wraps(command)
    def run(
        ctx: click.Context, /, *, app: str | None, broker: str | None, prefix: str | None, shard: int | None, **options: Any
    ) -> int | None:  # fmt: skip
        # Not at the top: `--help` acts on nothing.
        from celery_redis_plus.broker.queues.audit import acting, process_actor

        with acting(process_actor("cli")):
            return command(replace(_target(ctx, app, broker, prefix), shard=shard), **options)

    return run


def _target(ctx: click.Context, app: str | None, broker: str | None, prefix: str | None) -> Target:
    before = ctx.meta.get(GIVEN_BEFORE, {})
    if app is None and broker is None:
        app, broker = before.get("app"), before.get("broker")
    prefix = before.get("prefix") if prefix is None else prefix
    if app is not None and broker is not None:
        raise click.UsageError(f"--app {app} and --broker name two brokers; allowed is one of them")
    # What `celery -A app` hands to its sub-commands.
    celery_app = getattr(ctx.obj, "app", None)
    if app is not None:
        celery_app = _loaded(app)
    elif broker is not None:
        celery_app = None
        if not broker:
            raise click.UsageError("--broker is empty; allowed is a URL. Was a variable meant that is not set?")
        _warn_about_password(broker)
    if celery_app is not None and prefix is not None:
        raise click.UsageError(f"--prefix {prefix}: the app has its own global_keyprefix; allowed with --broker only")
    return Target(celery_app, broker or os.environ.get(URL_VARIABLE) or DEFAULT_URL, prefix or "")


def refuse_given_before(ctx: click.Context, allowed: str) -> None:
    """Raise click.UsageError where options of the broker stand before a command that does not take them from there."""
    for name, value in ctx.meta.get(GIVEN_BEFORE, {}).items():
        if value is not None:
            raise click.UsageError(f"--{name} before {ctx.info_name} has no effect; {allowed}")


def _loaded(name: str) -> Any:
    from celery_redis_plus.integration.app_broker import load_app

    try:
        return load_app(name)
    except Exception as error:
        raise click.UsageError(
            f"--app {name}: {type(error).__name__}: {error}; allowed is a module with a Celery app, or MODULE:NAME"
        ) from error


def _warn_about_password(url: str) -> None:
    try:
        password = urlsplit(url).password
    except ValueError:
        return
    if password:
        click.echo(f"a password in --broker is shown by `ps`: set ${URL_VARIABLE} instead, or use --app", err=True)
