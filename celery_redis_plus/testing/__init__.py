"""What users may use in their own tests: an embedded server, and pytest fixtures on top of it in `fixtures.py`."""

from celery_redis_plus.testing.server import EmbeddedServer, ServerStartError

__all__ = ["EmbeddedServer", "ServerStartError"]
