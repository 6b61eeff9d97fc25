"""Queues: their records, their waiting messages, their owners and counters."""
