"""The lanes of a broker: `cluster_lanes` spreads its queues over several hash slots, and so over the nodes of a cluster.

A lane is a broker of its own, with a prefix of its own; lane 0 has that of a broker without lanes. See docs/design/0020-lanes.md.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from string import digits
from zlib import crc32

from celery_redis_plus.connection.cluster_address import SLOTS, one_slot_prefix, slot_of, tag_of
from celery_redis_plus.keys import encode_name


def lane_of(name: str, lanes: int) -> int:
    """Return the lane of the queue, or of the fanout exchange, `name`.

    It follows from the name alone, so no two processes ever disagree: the CRC-32 of the name (UTF-8) without the number at its
    end, plus this number, modulo `lanes`. So `orders.0` to `orders.59` are spread evenly; other names are by chance.
    """
    stem = name.rstrip(digits)
    # Nine digits are plenty, and a name may have hundreds.
    return (crc32(encode_name(stem)) + int(name[len(stem) :][-9:] or 0)) % lanes


def only_one_lane(what: str, lanes: int) -> str:
    """Return the text of the error for what knows one lane only."""
    return f"{what} is not possible with the transport option cluster_lanes={lanes}; allowed is cluster_lanes=1"


@lru_cache(maxsize=256)
def lane_prefixes(prefix: str, lanes: int) -> tuple[str, ...]:
    """Return the prefix of each lane's keys, of a broker with the option `global_keyprefix` as `prefix`.

    Their slots are as far from each other as the shares of `lanes` equal nodes: nodes that share the slots evenly share the lanes
    evenly, too. `{shop:}` becomes `{shop:;1.7}`: the number of the lane, and the first number that leads to such a slot.
    """
    of_all = one_slot_prefix(prefix)
    tag, share = tag_of(of_all), SLOTS / lanes
    first = int(slot_of(of_all) / share)

    def prefix_of(lane: int) -> str:
        for number in count():
            found = of_all.replace(f"{{{tag}}}", f"{{{tag};{lane}.{number}}}", 1)
            # In the middle of its share, where nodes that share a little unevenly do not differ.
            if abs(slot_of(found) - ((first + lane) % lanes + 0.5) * share) <= share / 4:
                return found
        raise AssertionError

    return (prefix, *(prefix_of(lane) for lane in range(1, lanes)))
