"""Connections: where the server is (`address`), how to reach it (`connector`), whether it will do (`server_check`)."""
