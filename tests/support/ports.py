"""Ports for servers that choose none by themselves."""

from __future__ import annotations

import socket

from celery_redis_plus.testing.server import HOST


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
