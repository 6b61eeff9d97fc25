from tests.integration.transport.conftest import connect

__all__ = ["connect"]
