"""Makes HTML of what pages show: templates, filters, notices and refusals. Texts of others are escaped, here and nowhere else."""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from celery_redis_plus.admin.formatting import size, span, visible
from celery_redis_plus.cli.output import moment, time_of
from celery_redis_plus.cli.web.access import TOKEN_USER
from celery_redis_plus.cli.web.requests import parameter, url
from celery_redis_plus.cli.web.sparkline import sparkline

if TYPE_CHECKING:
    from starlette.requests import Request

    from celery_redis_plus.cli.web.access import Access
    from celery_redis_plus.cli.web.users import User

#: Notices that wait for the page that shows them.
MAX_NOTICES: Final = 100
#: Characters of a task's arguments in a row.
MAX_ARGUMENTS: Final = 200
#: A figure that is not known.
NOTHING: Final = "-"


class Presentation:
    """The templates of one server.

    Args:
        access: its rules.
        broker: what the broker is called, without its password.
    """

    def __init__(self, access: Access, broker: str) -> None:
        self._access = access
        self._broker = broker
        self._notices: OrderedDict[str, str] = OrderedDict()
        self._templates = _templates(self.url)

    def page(self, request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
        """Return the page of a template."""
        access = self._access
        user: User | None = request.state.user
        html = self._templates.get_template(template).render(
            path=request.scope["path"], read_only=not access.may_act(user), form_token=access.form_token, broker=self._broker,
            user=user, named=user is not None and user is not TOKEN_USER, logs_out=access.proxies.user(request) is None,
            notice=self._notices.pop(parameter(request, "notice"), None), now=datetime.now(UTC), **shown,
        )  # fmt: skip
        return HTMLResponse(html, status)

    def url(self, path: str, **parameters: object) -> str:
        """Return the address of a page, with the prefix of this server."""
        return self._access.url_prefix + url(path, **parameters)

    def refusal(self, request: Request, status: int, reason: str) -> HTMLResponse:
        """Return the page of an error, or with 401 the login, without anything that needs one."""
        title = "Log in" if status in (200, 401) else HTTPStatus(status).phrase
        html = self._templates.get_template("refusal.html").render(
            title=title, status=status, reason=reason, path=request.scope["path"],
            login=status in (200, 401) and (self._access.token is not None or self._access.has_passwords),
            names=self._access.has_passwords,
            # A broker that is away comes back.
            again=status == 503 and request.method == "GET",
        )  # fmt: skip
        return HTMLResponse(html, status)

    def note(self, notice: str) -> str:
        """Keep a notice for the page that a form leads to; return its name."""
        name = secrets.token_urlsafe(9)
        self._notices[name] = notice
        while len(self._notices) > MAX_NOTICES:
            self._notices.popitem(last=False)
        return name


def _templates(address: Callable[..., str]) -> Environment:
    templates = Environment(
        loader=PackageLoader("celery_redis_plus.cli.web"), autoescape=True, undefined=StrictUndefined, finalize=_printable,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    templates.filters.update(
        ago=_ago, arguments=_arguments, count=_count, moment=_moment, rate=_rate, size=size, span=_span, text=_text
    )
    templates.globals.update(sparkline=sparkline, url=address)
    return templates


def _printable(value: Any) -> Any:
    """Return a text as a terminal would show it: control characters, changes of direction and odd bytes are escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(map(visible, value.split("\n")))
    return value


def _moment(ms: int | None) -> Markup | None:
    """Return a time of the server, which the page's script may show in the browser's zone."""
    at = time_of(ms)
    return None if at is None else Markup('<time datetime="{}">{}</time>').format(at.isoformat(), moment(ms))


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.1f}"


def _span(seconds: float | None) -> str:
    return span(seconds) or NOTHING


def _ago(at: datetime | int | None, now: datetime) -> str:
    """Return how long before `now` a time is, of Python or in ms since the epoch."""
    if at is None:
        return NOTHING
    seconds = now.timestamp() - (at / 1000 if isinstance(at, int) else at.timestamp())
    return _span(max(0.0, seconds))


def _arguments(headers: Mapping[str, Any]) -> str:
    """Return the arguments of a Celery task as its headers tell them, shortened by Celery itself; a dash where they do not."""
    found = [str(headers[name]) for name in ("argsrepr", "kwargsrepr") if headers.get(name) not in (None, "", "()", "{}")]
    return " ".join(one if len(one) <= MAX_ARGUMENTS else f"{one[:MAX_ARGUMENTS]}…" for one in found) or NOTHING


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
