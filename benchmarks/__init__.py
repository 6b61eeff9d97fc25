"""Compare this transport with kombu's own redis transport, on one server, in one run.

``python -m benchmarks`` starts a server of its own, runs every contender in a fresh process on a
flushed database, interleaved (A B A B), and prints medians and the ratio ours / kombu redis.
How the figures are taken, and what they do not say, is in ``docs/benchmark-method.md``.
"""
