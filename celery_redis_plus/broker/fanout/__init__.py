"""Broadcasts: how the streams of fanout exchanges are read for the queues that are bound to them.

`entries` is the stored form, `positions` what a process has processed, `registry` what the server knows of that, `reader` the
blocked read of one connection. Nothing here is imported eagerly.
"""
