"""Connections: where the server is, how to reach it, whether it will do, and one held connection."""
