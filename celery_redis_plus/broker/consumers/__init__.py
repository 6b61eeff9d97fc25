"""Consumers: registry, claims, unacked messages, leases and acks."""
