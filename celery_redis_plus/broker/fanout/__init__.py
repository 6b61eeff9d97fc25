"""Broadcasts: how the streams of fanout exchanges are read for the queues that are bound to them.

`entries` is the stored form, `subscriber_cursor` what a process has processed, `subscriber_registry` what the server knows of
that, `reader` the blocked read of one connection, `subscription` what it has brought for one subscriber. Nothing here is imported
eagerly.
"""
