"""kombu connections, as the transport's tests have them."""

from tests.integration.transport.conftest import channel, connect, connection  # noqa: F401
