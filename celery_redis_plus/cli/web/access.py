"""Who may use the page: the token of the login, the host's name, where a form comes from, and read-only mode.

After https://cheatsheetseries.owasp.org: a cookie that is HttpOnly and SameSite=Strict, an Origin check and a token in each form
against cross-site requests, the Host header against DNS rebinding, and a policy under which a page runs only our own script.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request

from celery_redis_plus.cli.web.sessions import Sessions

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The largest form has the ids of a page of messages.
MAX_FORM_BYTES: Final = 100_000
#: A shorter token could be guessed.
MIN_TOKEN_CHARACTERS: Final = 16
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    # Forms send no Origin with "no-referrer".
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
#: What no name of a host has; some versions of Starlette read a path out of such a Host header.
NOT_IN_HOSTS = frozenset("/?#@\\")
#: What a request needs no login for.
STATIC, LOGIN = "/static/", "/login"
#: The form that read-only mode allows.
LOGOUT = "/logout"
#: Seconds in which a form has to come whole.
FORM_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server.

    Attributes:
        token: what a user must know.
        port: where the server listens. Browsers send cookies to all ports of a host, so the cookie's name has it.
        hosts: names that the Host header may have, beside `localhost` and addresses.
        read_only: actions are refused.
        form_token: what each form has, and no other site knows.
        sessions: the logins.
    """

    token: str
    port: int
    hosts: frozenset[str] = frozenset()
    read_only: bool = False
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    sessions: Sessions = field(default_factory=Sessions)

    @property
    def cookie(self) -> str:
        """The name of the login's cookie."""
        return f"celery-redis-plus-{self.port}"

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token."""
        return _equal(text, self.token)

    def session_of(self, request: Request) -> str:
        """Return the session that a request's cookie names; '' without one."""
        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value

    def is_known_host(self, request: Request) -> bool:
        """Return whether the Host header is ours. By DNS rebinding a page of another site has its own name there, no address."""
        named = request.headers.get("host", "")
        try:
            host = urlsplit(f"//{named}").hostname or ""
        except ValueError:
            return False
        if not NOT_IN_HOSTS.isdisjoint(named):
            return False
        return host == "localhost" or host in self.hosts or _is_address(host)

    def is_secure(self, request: Request) -> bool:
        """Return whether the browser speaks TLS, with us or with a proxy. A lie makes only the liar's cookie stricter."""
        told = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        return "https" in (told, request.url.scheme)

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """Return the status and the reason with which a request is refused; None for one that goes on, perhaps as a form."""
        if not self.is_known_host(request):
            return 400, "The name in the Host header is not this server's: allow it with --allow-host."
        if request.method == "POST" and not _is_from_here(request):
            return 403, "This form was not sent from a page of this server."
        # As the routes take it: `request.url` is made of the Host header as well.
        path: str = request.scope["path"]
        if path == LOGIN or path.startswith(STATIC):
            return None
        if not self.sessions.has(self.session_of(request)):
            return 401, "Log in with the URL that the server printed when it started, or with its token."
        if request.method == "POST" and self.read_only and path != LOGOUT:
            return 403, "This server was started with --read-only."
        return None

    def form_refusal(self, request: Request, form: dict[str, list[str]]) -> tuple[int, str] | None:
        """Return the status and the reason with which a form is refused; None for one that is let through."""
        if request.scope["path"] == LOGIN or _equal(form.get("form_token", [""])[0], self.form_token):
            return None
        return 403, "This form is from before the last start of the server: load the page again."


class Guard:
    """Lets through what `Access` allows, with the form of a POST as `request.state.form`; sets the headers of all answers."""

    def __init__(self, app: ASGIApp, access: Access, refuse: Callable[[Request, int, str], Response]) -> None:
        """Stand before `app`; `refuse` makes the answer of a status and a reason."""
        self._app = app
        self._access = access
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        refusal = self._access.refusal(request)
        if refusal is None and request.method == "POST":
            refusal = await self._read_form(request)
        app = self._app if refusal is None else self._refuse(request, *refusal)
        await app(scope, receive, _with_headers(send))

    async def _read_form(self, request: Request) -> tuple[int, str] | None:
        body = b""
        try:
            async with asyncio.timeout(FORM_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_FORM_BYTES:
                        return 413, f"A form may have {MAX_FORM_BYTES:,} bytes."
        except ClientDisconnect:
            return 400, "The form did not come whole."
        except TimeoutError:
            return 408, f"The form did not come whole in {FORM_S:.0f} seconds."
        try:
            form = parse_qs(body.decode("ascii"), keep_blank_values=True)
        except ValueError:
            return 400, "The form cannot be read."
        request.state.form = form
        return self._access.form_refusal(request, form)


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return with_headers


def _is_from_here(request: Request) -> bool:
    # A proxy before us may speak HTTPS, so the scheme is left out.
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:
        return False
    return origin.lower() == request.headers.get("host", "").lower() != ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _equal(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), secret.encode())
