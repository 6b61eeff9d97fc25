"""A broker's URL for programs that keep data of their own in Redis and know `redis://` only, such as plugins of Celery."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.tls import is_tls_argument
from celery_redis_plus.errors import InvalidAddress


def redis_url(broker_url: str) -> str:
    """Return the form of a broker's URL that redis-py reads: `redis://`, `rediss://` or `unix://`.

    User, password, database and TLS stay. Transport options in the query are left out.

    Args:
        broker_url: as in Celery's `broker_url`: one URL, with `redisplus://` or another scheme of this package.

    Raises:
        InvalidAddress: the URL cannot be read; or there is no such form of it, because it has Sentinels, a Redis Cluster, a
            credential provider or `ssl_min_version`.
    """
    if not isinstance(broker_url, str):
        raise InvalidAddress(f"broker_url is {broker_url!r}; allowed is the text of one URL")
    address = Address.from_url(broker_url)
    tls = {name: value for name, value in parse_qsl(broker_url.partition("?")[2]) if is_tls_argument(name)}
    named = {
        "Sentinels": address.sentinels, "a Redis Cluster": address.cluster, "a credential provider": address.credential_provider,
        "ssl_min_version": tls.get("ssl_min_version"),
    }  # fmt: skip
    for what, found in named.items():
        if found is not None:
            raise InvalidAddress(f"no redis:// URL can have {what}; give that program a URL or settings of its own")
    if "ssl_cert_reqs" in tls:
        tls["ssl_cert_reqs"] = tls["ssl_cert_reqs"].upper().removeprefix("CERT_").lower()
        if tls["ssl_cert_reqs"] == "none":
            # The ssl module refuses the combination.
            tls["ssl_check_hostname"] = "false"
    login = f"{quote(address.username or '', '')}:{quote(address.password or '', '')}@"
    login = login if len(login) > len(":@") else ""
    if address.path:
        return f"unix://{login}{quote(address.path)}?db={address.db}"
    scheme = "redis" if address.tls is None else "rediss"
    return f"{scheme}://{login}{address.server}/{address.db}" + (f"?{urlencode(tls)}" if tls else "")
