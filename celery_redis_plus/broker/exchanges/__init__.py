"""Exchanges and bindings: records, routing, and the topology that this process has declared."""
