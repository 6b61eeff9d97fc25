"""`celery-redis-plus web`: what is in the queues, and what to do about it, in a browser."""

from __future__ import annotations

import secrets
from urllib.parse import urlencode

import click

from celery_redis_plus.cli.exit_status import DONE
from celery_redis_plus.cli.target import Target, with_target
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.installation import install_command

TOKEN_VARIABLE = "CELERY_REDIS_PLUS_WEB_TOKEN"  # noqa: S105 - a name


@click.command(short_help="Serve a web page of the queues.")
@with_target
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen; '0.0.0.0' for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=9809, show_default=True, help="0 takes a free one.")
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    metavar="TEXT",
    help=f"For the login, 16 characters or more. Use ${TOKEN_VARIABLE} instead: `ps` shows an option. Default: random.",
)
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="A name of this host that browsers may use; may be repeated."
)
@click.option("--read-only", is_flag=True, help="Without all actions.")
def command(target: Target, *, host: str, port: int, token: str | None, names: tuple[str, ...], read_only: bool) -> int:
    """Serve a web page, until Ctrl-C: queues with their rates, waiting, scheduled and dead messages, consumers, subscribers.
    Dead letters can be replayed or deleted, queues paused and resumed. Needs the extra "web".

    It prints the URL to log in with; a token of yours is not printed. It listens on the loopback address only, unless --host
    says otherwise; use a proxy with TLS beyond it.
    """
    try:
        from celery_redis_plus.cli.web.access import MIN_TOKEN_CHARACTERS, Access
        from celery_redis_plus.cli.web.server import listen, serve
    except ImportError as error:
        raise InvalidArgument(f"{error.name} is missing: {install_command('web')}") from error
    if token is not None and len(token) < MIN_TOKEN_CHARACTERS:
        raise click.UsageError(f"--token has {len(token)} characters; allowed are {MIN_TOKEN_CHARACTERS} or more")
    try:
        listener = listen(host, port)
    except OSError as error:
        raise click.UsageError(f"--host {host} --port {port}: {error.strerror}; allowed is a free port of this host") from error
    port = listener.getsockname()[1]
    access = Access(token or secrets.token_urlsafe(24), port, frozenset({host.lower(), *map(str.lower, names)}), read_only)
    shown = f"[{host}]" if ":" in host else host
    # A token that the user has set stays out of logs.
    login = (
        f"login, and log in with your token ({TOKEN_VARIABLE} or --token)"
        if token
        else f"login?{urlencode({'token': access.token})}"
    )
    click.echo(f"open http://{shown}:{port}/{login}", err=True)
    try:
        with listener:
            serve(target.admin, access, listener, target.display())
    except KeyboardInterrupt:
        return DONE
    return DONE
