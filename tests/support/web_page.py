"""The web page in this process, without a socket, and a user's requests as a browser sends them, with cookie and Origin."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlencode

from celery_redis_plus.admin.shard_admin import admin_of_url
from celery_redis_plus.cli.web.access import TOKEN_USER, Access
from celery_redis_plus.cli.web.app import make_app
from celery_redis_plus.cli.web.bulk_actions import BulkActions
from celery_redis_plus.cli.web.connection import SharedConnection
from celery_redis_plus.cli.web.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp

    from celery_redis_plus.admin.broker_admin import BrokerAdmin

TOKEN = "a-token-of-the-tests"


class Answer(NamedTuple):
    """What the server answered."""

    status: int
    headers: Message
    text: str

    @property
    def form_token(self) -> str:
        return re.search(r'name="form_token" value="([^"]+)"', self.text)[1]  # type: ignore[index]


class WebPage:
    """The page, for one user.

    Attributes:
        app: as ASGI has it.
        access: its rules. samples: of its queues; the test adds some. bulk: the actions on many messages that it started.
        admin: gives its connection. cookie: the header of a user who is logged in.
    """

    def __init__(
        self, app: ASGIApp, access: Access, samples: Samples, bulk: BulkActions, admin: Callable[[], BrokerAdmin]
    ) -> None:  # fmt: skip
        self.app = app
        self.access = access
        self.samples = samples
        self.bulk = bulk
        self.admin = admin
        self.host = f"127.0.0.1:{access.port}"
        self.cookie = f"{access.cookie}={access.sessions.open(TOKEN_USER)}"

    def ask(
        self, method: str, path: str, body: str | bytes = b"", *, scheme: str = "http", peer: str | None = None, **headers: str
    ) -> Answer:  # fmt: skip
        """Send a request with these headers alone, from the address `peer`; `_` in their names stands for `-`."""
        return asyncio.run(self._ask(method, path, body if isinstance(body, bytes) else body.encode(), (scheme, peer), headers))

    async def _ask(self, method: str, path: str, body: bytes, sent_by: tuple[str, str | None], headers: dict[str, str]) -> Answer:
        raw_path, _, query = path.partition("?")
        named = {"host": self.host} | {name.replace("_", "-").lower(): value for name, value in headers.items()}
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": sent_by[0], "raw_path": raw_path.encode(),
            "path": unquote_to_bytes(raw_path).decode(), "query_string": query.encode(), "root_path": "",
            "client": None if sent_by[1] is None else (sent_by[1], 4711),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
        }  # fmt: skip
        sent: list[Any] = []

        requests = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            # The user stays until the answer is there.
            return requests.pop() if requests else await asyncio.Future()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        answered = Message()
        for name, value in sent[0]["headers"]:
            answered[name.decode()] = value.decode("latin-1")
        return Answer(sent[0]["status"], answered, b"".join(one.get("body", b"") for one in sent[1:]).decode())

    def get(self, path: str, **parameters: Any) -> Answer:
        """Load a page as a user who is logged in."""
        query = urlencode(parameters, errors="surrogateescape")
        return self.ask("GET", f"{path}?{query}" if query else path, Cookie=self.cookie)

    def post(self, path: str, form: Mapping[str, Any] | None = None, **parameters: Any) -> Answer:
        """Send a form as a user who is logged in, from a page of the server; follow it to the page where it leads."""
        body = urlencode({"form_token": self.access.form_token, **(form or {})}, doseq=True)
        query = urlencode(parameters, errors="surrogateescape")
        answer = self.ask("POST", f"{path}?{query}", body, Cookie=self.cookie, Origin=f"http://{self.host}")
        if answer.status != 303:
            return answer
        return self.ask("GET", answer.headers["Location"], Cookie=self.cookie)


@contextmanager
def web_page(broker_url: str, *, read_only: bool = False, hosts: tuple[str, ...] = (), **rules: Any) -> Iterator[WebPage]:
    """Serve the page of a broker in this process; `rules` are more of `Access`."""
    shared, samples, bulk = SharedConnection(lambda: admin_of_url(broker_url, {})), Samples(), BulkActions()
    access = Access(**{"token": TOKEN, "port": 9809, "hosts": frozenset(hosts), "read_only": read_only, **rules})
    try:
        yield WebPage(make_app(shared.admin, samples, access, bulk, "the tests' broker"), access, samples, bulk, shared.admin)
    finally:
        bulk.close()
        shared.close()
