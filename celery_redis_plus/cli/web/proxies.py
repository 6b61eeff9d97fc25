"""What a proxy before the page tells: where a request comes from, and who the user is. Only some proxies are believed."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

Network = IPv4Network | IPv6Network
UNKNOWN = "an unknown address"


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies that are believed.

    Attributes:
        networks: their addresses.
        user_header: the header that has the user's name; None: users log in here.
    """

    networks: tuple[Network, ...] = ()
    user_header: str | None = None

    @classmethod
    def parse(cls, addresses: Sequence[str], user_header: str | None = None) -> Proxies:
        """Return those at addresses, or in networks such as 10.0.0.0/8.

        Raises:
            InvalidArgument: an address is none, or a header is named without a proxy that may send it.
        """
        try:
            networks = tuple(ip_network(address, strict=False) for address in addresses)
        except ValueError as error:
            raise InvalidArgument(
                f"the proxy to trust: {error}; allowed is an address, or a network such as 10.0.0.0/8"
            ) from error
        if user_header is not None and not networks:
            raise InvalidArgument("a header that has the user needs the proxy that may send it (--trust-proxy)")
        return cls(networks, user_header)

    def address(self, request: Request) -> str:
        """Return where a request comes from: of what a trusted proxy tells, the last address that is none of theirs."""
        peer = UNKNOWN if request.client is None else request.client.host
        if not self._is_trusted(peer):
            return peer
        told = [one.strip() for one in ",".join(request.headers.getlist("x-forwarded-for")).split(",") if one.strip()]
        for one in reversed(told):
            if not _is_address(one):
                return peer
            if not self._is_trusted(one):
                return one
        return told[0] if told else peer

    def user(self, request: Request) -> str | None:
        """Return the user that a trusted proxy names; None where it names none."""
        if self.user_header is None or request.client is None or not self._is_trusted(request.client.host):
            return None
        named = request.headers.getlist(self.user_header)
        # A second one may be the user's own.
        return named[0].strip() or None if len(named) == 1 else None

    def _is_trusted(self, address: str) -> bool:
        found = _address(address)
        return found is not None and any(found in network for network in self.networks)


def _is_address(text: str) -> bool:
    return _address(text) is not None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
