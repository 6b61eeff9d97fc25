"""The question for the owner of a hash slot: what one node of a cluster answers, and whether a node says of itself that it is.

Sources: https://redis.io/docs/latest/commands/cluster-slots/, https://redis.io/docs/latest/commands/cluster-nodes/
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus.connection.master_question import Master, NoAnswer, number_of, text_of
from celery_redis_plus.keys import encode_name

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.connection.cluster_address import Cluster

logger = logging.getLogger(__name__)

#: Seconds that a node may take for each answer, where others can be asked: all know the same.
ANSWER_S = 1.0


class ClusterQuestion:
    """Asks the nodes of a cluster for the owner of the broker's slot."""

    purpose = "cluster"
    asked = "node"
    remedy = "check the nodes in broker_url, and that the cluster is whole (CLUSTER INFO) and no migration of this slot hangs"
    moves = True

    def __init__(self, cluster: Cluster) -> None:
        """Ask the nodes of `cluster`, and those that they name."""
        self._cluster = cluster
        self.hosts = cluster.hosts
        self.timeout_s: float | None = ANSWER_S if len(cluster.hosts) > 1 else None
        self.wanted = f"owner of slot {cluster.slot}"

    def address(self, of: Address, host: str, port: int) -> Address:
        """Return where to ask a node: as the user whose the broker is."""
        return replace(of, host=host, port=port, cluster=None)

    def fetch(self, connection: AbstractConnection, _: str) -> tuple[list[Any], list[str]]:
        """Return the owners of all slots, and the lines about all nodes; none where these may not be asked for."""
        ranges = _call(connection, "SLOTS")
        if not isinstance(ranges, list):
            raise NoAnswer(f"its answer cannot be read: {ranges!r}")
        try:
            return ranges, text_of(_call(connection, "NODES")).splitlines()
        except NoAnswer as refusal:
            logger.debug("a node does not tell the configuration epoch: %s", refusal)
            return ranges, []

    def read_answer(self, fetched: tuple[list[Any], list[str]], host: str) -> Master:
        """Return the owner of the slot that a node on `host` names. Raises as `Question.read`."""
        ranges, lines = fetched
        slot = self._cluster.slot
        servers = next((one[2:] for one in ranges if int(one[0]) <= slot <= int(one[1])), None)
        if not servers:
            raise NoAnswer(f"slot {slot} has no owner: the cluster is incomplete")
        owner = _server(servers[0], host)
        if owner is None:
            raise NoAnswer("it does not know the host name of the owner: see cluster-announce-hostname")
        nodes = dict.fromkeys(filter(None, (_server(one, host) for slots in ranges for one in slots[2:])))
        epoch = self._epoch(lines, text_of(servers[0][2])) if len(servers[0]) > 2 else None
        return Master(*owner, epoch, tuple(nodes))

    def _epoch(self, lines: list[str], node_id: str) -> int | None:
        """Return the configuration epoch of the owner, by which answers are told to be newer; None where it may not be asked.

        Raises:
            NoAnswer: the owner does not answer this node.
        """
        fields: list[str] = next((line.split(" ") for line in lines if line.startswith(node_id)), [])
        if len(fields) < 7:
            return None
        if {"fail", "fail?"} & set(fields[2].split(",")):
            raise NoAnswer(f"the {self.wanted} ({fields[1]}) does not answer it, and has no successor yet")
        return number_of("config-epoch", fields[6])

    def check(self, connection: AbstractConnection, address: Address) -> None:
        """Read a key that does not exist: only the owner answers, and only while no key of the slot is on its way elsewhere.

        The key is the prefix alone. In a slot that migrates, a node redirects (ASK) where it is asked for a key that it lacks.
        """
        connection.send_command("TYPE", encode_name(self._cluster.prefix))
        try:
            connection.read_response(disable_decoding=True)
        except NoPermissionError as error:
            logger.debug("%s: cannot see that the node owns the slot, TYPE is refused: %s", address.display(), error)


def _call(connection: AbstractConnection, question: str) -> Any:
    connection.send_command("CLUSTER", question)
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        text = str(error)
        is_none = "cluster support disabled" in text or "unknown command" in text.lower()
        raise NoAnswer(f"it is no node of a cluster ({text})" if is_none else text, unknown=is_none) from error


def _server(described: list[Any], asked: str) -> tuple[str, int] | None:
    """Return host and port of a node in an answer of the node on the host `asked`; None for one without a host name.

    A node that does not know how clients reach it, or that is set up so (`cluster-preferred-endpoint-type unknown-endpoint`),
    has no host: then it is the one that was asked. `?` is a host name that is missing.
    """
    host = text_of(described[0] or b"") or asked
    return None if host == "?" else (host, number_of("port", described[1]))
