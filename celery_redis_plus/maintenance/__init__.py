"""The background work of a consuming process: one thread with two connections of its own, one maintenance task a file."""
