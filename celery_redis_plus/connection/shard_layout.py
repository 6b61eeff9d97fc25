"""Where queues are: the option `shards` spreads them over several brokers, each with a prefix, and so a hash slot, of its own.

Shard 0 has the prefix of a broker without shards. See docs/design/0022-shards.md.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from string import digits
from zlib import crc32

from celery_redis_plus.connection.cluster_address import SLOTS, one_slot_prefix, slot_of, tag_of
from celery_redis_plus.keys import encode_name


def shard_of(name: str, shards: int) -> int:
    """Return the number of the shard that the queue, or the exchange, `name` belongs to.

    It follows from the name alone, so no two processes ever disagree: the CRC-32 of the name (UTF-8) without the number at its
    end, plus this number, modulo `shards`. So `orders.0` to `orders.59` are spread evenly; other names are by chance.
    """
    stem = name.rstrip(digits)
    # Nine digits are plenty, and a name may have hundreds.
    return (crc32(encode_name(stem)) + int(name[len(stem) :][-9:] or 0)) % shards


@lru_cache(maxsize=256)
def shard_prefixes(prefix: str, shards: int) -> tuple[str, ...]:
    """Return the prefix of each shard's keys, of a broker with the option `global_keyprefix` as `prefix`.

    Their slots are as far from each other as the shares of `shards` equal nodes: nodes that share the slots evenly share the
    shards evenly, too. `{shop:}` becomes `{shop:;1.7}`: the number of the shard, and the first number that leads to such a slot.
    """
    of_all = one_slot_prefix(prefix)
    tag, share = tag_of(of_all), SLOTS / shards
    first = int(slot_of(of_all) / share)

    def prefix_of(shard: int) -> str:
        for number in count():
            found = of_all.replace(f"{{{tag}}}", f"{{{tag};{shard}.{number}}}", 1)
            # In the middle of its share, where nodes that share a little unevenly do not differ.
            if abs(slot_of(found) - ((first + shard) % shards + 0.5) * share) <= share / 4:
                return found
        raise AssertionError

    return (prefix, *(prefix_of(shard) for shard in range(1, shards)))
