"""`celery-redis-plus web`: what is in the queues, and what to do about it, in a browser."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from celery_redis_plus.cli.exit_status import DONE
from celery_redis_plus.cli.target import Target, with_target
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.installation import install_command

#: What a prefix of paths may have.
PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
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
@click.option(
    "--users",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Log in by this file, which web-user writes, instead of a token.",
)
@click.option(
    "--trust-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Believe what this proxy, or network, tells; may be repeated.",
)
@click.option("--user-header", metavar="HEADER", help="In which a trusted proxy names its user.")
@click.option("--url-prefix", default="", metavar="PATH", help="What stands before each path, such as /celery.")
def command(
    target: Target, *, host: str, port: int, token: str | None, names: tuple[str, ...], read_only: bool, **rules: Any
) -> int:  # fmt: skip
    """Serve the web page, until Ctrl-C. Needs the extra "web".

    It prints the URL to log in with; a token of yours is not printed. It listens on the loopback address only, unless --host
    says otherwise; use a proxy with TLS beyond it. /healthz answers without a login.
    """
    try:
        from celery_redis_plus.cli.web.access import MIN_TOKEN_CHARACTERS, Access
        from celery_redis_plus.cli.web.proxies import Proxies
        from celery_redis_plus.cli.web.server import listen, serve
        from celery_redis_plus.cli.web.users import Users
    except ImportError as error:
        raise InvalidArgument(f"{error.name} is missing: {install_command('web')}") from error
    if token is not None and len(token) < MIN_TOKEN_CHARACTERS:
        raise click.UsageError(f"--token has {len(token)} characters; allowed are {MIN_TOKEN_CHARACTERS} or more")
    users, user_header, url_prefix = rules["users"], rules["user_header"], rules["url_prefix"]
    others = [name for name, value in (("--users", users), ("--user-header", user_header)) if value is not None]
    if token is not None and others:
        raise click.UsageError(f"--token and {others[0]} are two ways to log in; allowed is one of them")
    if url_prefix and (not url_prefix.startswith("/") or url_prefix.endswith("/") or not PREFIX.fullmatch(url_prefix)):
        raise click.UsageError(
            f"--url-prefix {url_prefix!r} is not allowed; allowed is a path such as /celery, without / at its end"
        )
    known, trusted = None if users is None else Users.read(users), Proxies.parse(rules["proxies"], user_header)
    try:
        listener = listen(host, port)
    except OSError as error:
        raise click.UsageError(f"--host {host} --port {port}: {error.strerror}; allowed is a free port of this host") from error
    port = listener.getsockname()[1]
    access = Access(
        None if others else token or secrets.token_urlsafe(24), port, frozenset({host.lower(), *map(str.lower, names)}),
        read_only, known, trusted, url_prefix,
    )  # fmt: skip
    shown = f"[{host}]" if ":" in host else host
    # A token that the user has set stays out of logs.
    if user_header is not None:
        login = f"/, behind a proxy that sends {user_header}"
    elif users is not None:
        login = f"/login, and log in with a name and its password of {users}"
    elif token is not None:
        login = f"/login, and log in with your token ({TOKEN_VARIABLE} or --token)"
    else:
        login = f"/login?{urlencode({'token': access.token})}"
    click.echo(f"open http://{shown}:{port}{url_prefix}{login}", err=True)
    try:
        with listener:
            serve(target.admin, access, listener, target.display())
    except KeyboardInterrupt:
        return DONE
    return DONE
