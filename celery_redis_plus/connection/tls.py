"""TLS arguments: from what users write (URL, `broker_use_ssl`) to what redis-py's SSLConnection takes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery_redis_plus.errors import InvalidAddress

_PREFIX = "ssl_"

#: The TLS arguments that redis-py 6.4 to 8.1 have; `include`/`exclude_verify_flags` since 7.0.
_KNOWN = frozenset(
    _PREFIX + name
    for name in (
        *("keyfile", "certfile", "password", "ca_certs", "ca_path", "ca_data", "cert_reqs", "check_hostname"),
        *("min_version", "ciphers", "include_verify_flags", "exclude_verify_flags"),
        *("validate_ocsp", "validate_ocsp_stapled", "ocsp_context", "ocsp_expected_cert"),
    )
)

_FILES = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ca_path")
_FLAGS = ("ssl_check_hostname", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled")


def is_tls_argument(name: str) -> bool:
    """Whether `name` in a URL's query belongs to TLS."""
    return name.startswith(_PREFIX)


def tls_arguments(given: Mapping[str, Any] | bool) -> dict[str, Any] | None:
    """Return redis-py's `ssl_*` arguments for what the user gave; None for no TLS (False, or as in kombu {}).

    True means TLS with the server's certificate checked. (kombu's Redis transport silently connects without
    TLS then.) Names work with and without `ssl_`; `cert_reqs` takes `ssl.CERT_*`, their names, "required",
    "optional", "none" or None; `min_version` takes an `ssl.TLSVersion` or its name.

    Raises:
        InvalidAddress: an unknown name, a value that is not allowed, or a key without its certificate.
    """
    if not given:
        return None
    if not isinstance(given, Mapping):
        return {}
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        full = name if name.startswith(_PREFIX) else _PREFIX + name
        if full not in _KNOWN:
            # For an error only.
            import difflib

            near = difflib.get_close_matches(full, sorted(_KNOWN), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(_KNOWN))}"
            raise InvalidAddress(f"unknown TLS option {name!r}; {hint}")
        arguments[full] = _value(full, value)
    if arguments.get("ssl_keyfile") and not arguments.get("ssl_certfile"):
        raise InvalidAddress("TLS option ssl_keyfile needs ssl_certfile: the file with the certificate of this key")
    if arguments.get("ssl_cert_reqs") == ssl.CERT_NONE:
        arguments["ssl_check_hostname"] = False  # the ssl module refuses the combination
    return arguments


def completed_tls(first: Mapping[str, Any] | None, given: Mapping[str, Any] | bool | None) -> dict[str, Any] | None:
    """Return the arguments of `first`, which `tls_arguments` made or None, with those of `given` that it lacks.

    Raises as `tls_arguments` does.
    """
    if first is None or not isinstance(given, Mapping):
        return tls_arguments(given or False) if first is None else dict(first)
    named = {name if name.startswith(_PREFIX) else _PREFIX + name: value for name, value in given.items()}
    return tls_arguments({**named, **first}) or {}


def check_files(arguments: Mapping[str, Any]) -> None:
    """Raise InvalidAddress if a file that the TLS arguments name is not there.

    redis-py reports a missing certificate as "Error 2 connecting to host", which sends users looking at the
    network.
    """
    for name in _FILES:
        path = arguments.get(name)
        if path and not Path(path).exists():
            raise InvalidAddress(f"TLS option {name}={path!r}: no such file")


def _value(name: str, value: Any) -> Any:
    if name == "ssl_cert_reqs":
        return _verify_mode(value)
    if name in _FLAGS:
        return _flag(name, value)
    if name == "ssl_min_version" and isinstance(value, str):
        try:
            return ssl.TLSVersion[value]
        except KeyError:
            raise InvalidAddress(f"TLS option {name}={value!r}; allowed: TLSv1_2 or TLSv1_3") from None
    return value


def _verify_mode(value: Any) -> ssl.VerifyMode:
    if value is None:
        return ssl.CERT_NONE
    text = str(value.name if isinstance(value, ssl.VerifyMode) else value).upper().removeprefix("CERT_")
    try:
        return ssl.VerifyMode[f"CERT_{text}"] if not isinstance(value, int) else ssl.VerifyMode(value)
    except (KeyError, ValueError):
        raise InvalidAddress(f"TLS option ssl_cert_reqs={value!r}; allowed: 'required', 'optional' or 'none'") from None


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"true", "1", "yes", "on"}:
        return True
    if text in {"false", "0", "no", "off"}:
        return False
    raise InvalidAddress(f"TLS option {name}={value!r}; allowed: true or false")
