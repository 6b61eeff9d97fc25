"""Options of others in the same dict or URL as ours: some have no effect here, others kombu reads itself; the rest is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from celery_redis_plus.errors import OptionError

#: Options of kombu's Redis transport, and of RabbitMQ's, that have no meaning here.
IGNORED_OPTIONS = frozenset(
    {
        *(
            "ack_emulation",
            "body_encoding",
            "max_connections",
            "priority_steps",
            # redis-py's: no reply here differs between the two versions of the protocol.
            "protocol",
            "reauth_check_interval",
            "retry_on_timeout",
            "sentinel_fanout_compat",
            "sep",
        ),
        *("unacked_key", "unacked_index_key", "unacked_mutex_key", "unacked_mutex_expire"),
        *("unacked_restore_limit", "unacked_restore_interval", "unacked_restore_throttle"),
        # py-amqp's: here every publish is confirmed by the server's reply, and the timeouts have other names.
        *("confirm_publish", "confirm_timeout", "client_properties", "login_method"),
        *("connect_timeout", "read_timeout", "write_timeout"),
    }
)

#: What kombu 5.7 reads from, or writes into, the same dict: `Connection._extract_failover_opts`, and the
#: retry policy with which `Producer.publish(retry=True)` updates it (the arguments of `Connection.ensure`).
KOMBU_OPTIONS = frozenset(
    {
        *(
            "max_retries",
            "interval_start",
            "interval_step",
            "interval_max",
            "connect_retries_timeout",
            "timeout",
        ),
        *("errback", "callback", "on_revive", "retry_errors", "reraise_as_library_errors"),
    }
)


#: Options of development versions, and what took their place.
RENAMED_OPTIONS = {"cluster_lanes": "shards"}


def ignored(mapping: Mapping[str, Any]) -> list[str]:
    """Return the names in `mapping` that other transports of kombu know and that mean nothing here.

    They are accepted, so that an existing application runs unchanged; the transport logs them once.
    """
    return sorted(name for name in mapping if name in IGNORED_OPTIONS)


def unknown(name: str, known: Collection[str]) -> OptionError:
    """Return the error for an option that is neither one of the `known` ones nor an ignored one."""
    if name in RENAMED_OPTIONS:
        return OptionError(f"transport option {name!r} is not known any more; allowed is {RENAMED_OPTIONS[name]!r}")
    # For an error only.
    import difflib

    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(sorted(known))}"
    return OptionError(f"unknown transport option {name!r}; {hint}")


def check_url_options(mapping: Mapping[str, str]) -> None:
    """Refuse in a URL's query what only works in the transport options, where kombu itself reads it.

    Raises:
        OptionError: one of kombu's own options, such as `max_retries`, stands in the URL.
    """
    for name in mapping:
        if name in KOMBU_OPTIONS:
            raise OptionError(
                f"option {name!r} is not allowed in the broker URL, where kombu does not read it; "
                "put it into broker_transport_options (transport_options in kombu)"
            )
