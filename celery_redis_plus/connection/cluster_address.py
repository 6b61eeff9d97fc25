"""The nodes of a Redis Cluster in an address, and the one hash slot in which all keys of a broker are.

Source: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import NamedTuple

from celery_redis_plus.connection.host_lists import servers_text
from celery_redis_plus.keys import encode_name, hash_tag

#: How many hash slots a cluster has.
SLOTS = 16_384
#: What stands between the braces where the app has no `global_keyprefix`.
DEFAULT_TAG = "celery-redis-plus"


class Cluster(NamedTuple):
    """The nodes that are asked for the owner of the broker's slot. `prefix` begins each key, and has the hash tag."""

    hosts: tuple[tuple[str, int], ...]
    prefix: str = ""

    @property
    def servers(self) -> str:
        """The nodes as `host:port`, with commas between them."""
        return servers_text(self.hosts)

    @property
    def slot(self) -> int:
        """The slot of all keys."""
        return slot_of(self.prefix)


def one_slot_prefix(prefix: str) -> str:
    """Return `prefix` with a hash tag, so that all keys that begin with it are in one slot.

    One that has a tag stays as it is: `{shop}:`, `test:{shop}`. Any other becomes the tag: `shop:` is `{shop:}`.
    """
    return prefix if tag_of(prefix) else f"{{{hash_tag(prefix or DEFAULT_TAG)}}}"


def slot_of(key: str) -> int:
    """Return the hash slot of a key."""
    return crc_hqx(encode_name(tag_of(key) or key), 0) % SLOTS


def tag_of(key: str) -> str:
    """Return what stands between the first `{` and the next `}`; empty for a key without a tag."""
    rest = key.partition("{")[2]
    tag, brace, _ = rest.partition("}")
    return tag if brace else ""
