"""Serves the page until Ctrl-C."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from celery_redis_plus.broker.queues import audit
from celery_redis_plus.cli.web import actions, samples
from celery_redis_plus.cli.web.app import make_app
from celery_redis_plus.cli.web.bounded_connections import BACKLOG, BoundedConnection
from celery_redis_plus.cli.web.bulk_actions import BulkActions
from celery_redis_plus.cli.web.connection import SharedConnection
from celery_redis_plus.cli.web.samples import Sampler, Samples

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.cli.web.access import Access


#: Of uvicorn. The access log would have the token of the login's URL. What a proxy tells, the page reads by itself.
SETTINGS: Final[dict[str, Any]] = {
    "http": BoundedConnection, "backlog": BACKLOG, "proxy_headers": False, "access_log": False, "log_level": "warning",
    "server_header": False, "lifespan": "off", "timeout_graceful_shutdown": 5,
}  # fmt: skip


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there.

    Raises:
        OSError: the address is another program's, or none of this host's.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def _log_actions() -> None:
    """Write who does what, who fails to log in, and since when the broker is away, to stderr, unless logging is set up."""
    for logger in map(logging.getLogger, (audit.__name__, actions.__name__, samples.__name__)):
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)


def serve(connect: Callable[[], BrokerAdmin], access: Access, listener: socket.socket, broker: str) -> None:
    """Serve until Ctrl-C or SIGTERM; `connect` opens a connection to the broker, `broker` is what pages call it."""
    _log_actions()
    shared, found, bulk = SharedConnection(connect), Samples(), BulkActions()
    app = make_app(shared.admin, found, access, bulk, broker)
    try:
        with Sampler(found, shared.admin):
            uvicorn.Server(uvicorn.Config(app, **SETTINGS)).run([listener])
    finally:
        bulk.close()
        shared.close()
