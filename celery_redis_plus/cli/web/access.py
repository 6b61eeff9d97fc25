"""Who may use the page: logins by token, password or proxy, the host's name, where a form comes from, roles, read-only mode.

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

from celery_redis_plus.cli.web.failed_logins import FailedLogins
from celery_redis_plus.cli.web.proxies import Proxies
from celery_redis_plus.cli.web.sessions import Sessions
from celery_redis_plus.cli.web.users import VIEWER, User

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from celery_redis_plus.cli.web.users import Users

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
STATIC, LOGIN, HEALTH = "/static/", "/login", "/healthz"
#: The form that read-only mode allows.
LOGOUT = "/logout"
#: Seconds in which a form has to come whole.
FORM_S: Final = 10.0
#: Who logs in with the token.
TOKEN_USER: Final = User("web")


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server.

    Attributes:
        token: what a user must know; None where users have passwords, or a proxy names them.
        port: where the server listens. Browsers send cookies to all ports of a host, so the cookie's name has it.
        hosts: names that the Host header may have, beside `localhost` and addresses.
        read_only: actions are refused.
        users: those with passwords; of those that a proxy names, their roles. None: everybody who comes in is an operator.
        proxies: which are believed.
        url_prefix: what stands before each path, such as `/celery`.
        form_token: what each form has, and no other site knows.
        sessions: the logins. failed: those that failed.
    """

    token: str | None
    port: int
    hosts: frozenset[str] = frozenset()
    read_only: bool = False
    users: Users | None = None
    proxies: Proxies = field(default_factory=Proxies)
    url_prefix: str = ""
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    sessions: Sessions = field(default_factory=Sessions)
    failed: FailedLogins = field(default_factory=FailedLogins)

    @property
    def cookie(self) -> str:
        """The name of the login's cookie."""
        return f"celery-redis-plus-{self.port}"

    def login(self, name: str, secret: str) -> User | None:
        """Return who logs in with a name and a password, or with the token; None: nobody does."""
        if self.token is not None:
            return TOKEN_USER if _equal(secret.strip(), self.token) else None
        return self.users.login(name, secret) if self.users is not None and self.has_passwords else None

    def user_of(self, request: Request) -> User | None:
        """Return who sends a request: whom a trusted proxy names, or who is logged in; None: nobody is."""
        named = self.proxies.user(request)
        if named is None:
            return self.sessions.user(self.session_of(request))
        if self.users is None:
            return User(named)
        # A user whom the file does not know looks only.
        return self.users.named(named) or User(named, VIEWER)

    def may_act(self, user: User | None) -> bool:
        """Return whether a user may do more than look."""
        return user is not None and user.may_act and not self.read_only

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
        if path in {LOGIN, HEALTH} or path.startswith(STATIC):
            return None
        user = request.state.user = self.user_of(request)
        if user is None:
            return 401, self._how_to_log_in()
        if request.method == "POST" and path != LOGOUT and not self.may_act(user):
            read_only = "This server was started with --read-only."
            return 403, read_only if self.read_only else f"User {user.name!r} is a {user.role}, and may look only."
        return None

    def _how_to_log_in(self) -> str:
        if self.token is not None:
            return "Log in with the URL that the server printed when it started, or with its token."
        return "Log in with your name and password." if self.has_passwords else "The proxy before this page names no user."

    @property
    def has_passwords(self) -> bool:
        """Whether users log in with a name and a password."""
        return self.token is None and self.users is not None and self.proxies.user_header is None

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
        scope = {**scope, "path": self._path(scope["path"])}
        request = Request(scope, receive)
        request.state.user, request.state.address = None, self._access.proxies.address(request)
        refusal = self._access.refusal(request)
        if refusal is None and request.method == "POST":
            refusal = await self._read_form(request)
        app = self._app if refusal is None else self._refuse(request, *refusal)
        await app(scope, receive, _with_headers(send))

    def _path(self, path: str) -> str:
        """Return a path without the prefix; some proxies take it away, and others do not."""
        prefix = self._access.url_prefix
        inner = path.removeprefix(prefix) if prefix else path
        return inner or "/" if inner in {"", path} or inner.startswith("/") else path

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
