"""kombu connections, as the transport's tests have them: every room reads stored messages."""

from tests.integration.transport.conftest import channel, connect, connection  # noqa: F401
