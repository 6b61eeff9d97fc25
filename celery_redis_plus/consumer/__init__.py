"""Consumers: waiting for wake-ups, claiming, delivering. Knows no kombu: an event loop is its file descriptors and timers.

A `DeliveryLoop` serves the `QueueConsumers` of all channels of one `BrokerConnection`. Nothing here is handed its owner.
"""
