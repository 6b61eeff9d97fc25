"""How the sub-commands are told which broker they mean."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.cli.broker_admin import BrokerAdmin

#: Where the URL is taken from when it is not given; Celery's own name for it.
URL_VARIABLE = "CELERY_BROKER_URL"
DEFAULT_URL = "redis://localhost:6379/0"


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--url` and `--prefix`."""
    parser.add_argument("--url", metavar="URL", help=f"the broker; by default ${URL_VARIABLE}, else {DEFAULT_URL}", default=None)
    parser.add_argument("--prefix", metavar="TEXT", default="", help="the app's option global_keyprefix")


def operator_for(arguments: argparse.Namespace) -> BrokerAdmin:
    """Return an operator for what the command line says. Raises as `BrokerAdmin` does."""
    # Not at the top: every command declares its arguments by this file, `--help` and `demo` included.
    from celery_redis_plus.cli.broker_admin import BrokerAdmin

    return BrokerAdmin(url_of(arguments), {"global_keyprefix": arguments.prefix})


def url_of(arguments: argparse.Namespace) -> str:
    """Return the broker's URL that the command line means."""
    return arguments.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
