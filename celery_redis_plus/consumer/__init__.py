"""Consumers: waiting for wake-ups, claiming, delivering. Knows no kombu: an event loop is its file descriptors and timers.

A `DeliveryLoop` serves the `QueueConsumers` of all channels of one `ConsumerSession`, which stands over the `PublisherSession` of
the connection. A process that only publishes has the latter alone, and loads nothing else of this room. No part is handed its
owner.
"""
