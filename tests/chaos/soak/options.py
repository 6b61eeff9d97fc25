"""Transport options of a soak: whatever is kept for a time or up to a number is full after its first quarter."""

from __future__ import annotations

OPTIONS = {"event_log_maxlen": 5_000, "event_log_hard_maxlen": 10_000, "stream_maxlen": 500, "client_name": "soak"}
