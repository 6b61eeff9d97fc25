"""What the forms of the pages do. Each ends with a notice on the page that it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter
from celery_redis_plus.cli.web.requests import field, fields, parameter, required, url

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from celery_redis_plus.cli.broker_admin import BrokerAdmin
    from celery_redis_plus.cli.web.access import Access
    from celery_redis_plus.cli.web.presentation import Presentation
    from celery_redis_plus.cli.web.replays import Replays

#: How long a pause may be, by the value of its form.
PAUSES: Final = {"": None, "900": 900.0, "3600": 3_600.0, "28800": 28_800.0}
#: Refusals of a replay that a notice has.
MAX_REFUSED_SHOWN: Final = 3


class Actions:
    """What POST does; arguments as of `Pages`."""

    def __init__(
        self, admin: Callable[[], BrokerAdmin], access: Access, presentation: Presentation, replays: Replays
    ) -> None:  # fmt: skip
        self._admin = admin
        self._replays = replays
        self._access = access
        self._presentation = presentation

    def login(self, request: Request) -> Response:
        """Give the cookie to a user who knows the token, from the login URL or from the form."""
        token = field(request, "token") if request.method == "POST" else parameter(request, "token")
        if not self._access.is_token(token):
            return self._presentation.refusal(request, 401, "This is not the token." if token else "")
        # No redirect: the browser would not send a strict cookie behind a link on another site, a chat for example.
        answer = self._presentation.page(request, "logged_in.html")
        # Starlette knows the scheme that a proxy tells uvicorn.
        secure = request.url.scheme == "https"
        answer.set_cookie(self._access.cookie, self._access.session, httponly=True, samesite="strict", secure=secure)
        return answer

    def logout(self, request: Request) -> Response:
        """Take the cookie away."""
        answer = self._presentation.refusal(request, 200, "Logged out.")
        answer.delete_cookie(self._access.cookie, httponly=True, samesite="strict")
        return answer

    def pause(self, request: Request) -> Response:
        """Pause a queue."""
        name, reason, length = required(request, "name"), field(request, "reason"), field(request, "for")
        if length not in PAUSES:
            raise HTTPException(400, f"for={length:.50}: allowed are {', '.join(filter(None, PAUSES))} seconds, or none.")
        self._admin().pause(name, reason, PAUSES[length])
        return self._back(url("/queue", name=name), f"Queue {name!r} is paused.")

    def resume(self, request: Request) -> Response:
        """End the pause of a queue."""
        name = required(request, "name")
        was_paused = self._admin().resume(name)
        return self._back(url("/queue", name=name), f"Queue {name!r} {'goes on' if was_paused else 'was not paused'}.")

    def replay(self, request: Request) -> Response:
        """Put the ticked dead letters of a queue back to work."""
        admin, name, tags = self._admin(), required(request, "queue"), _ticked(request)
        admin.check_queue(name)
        letters = admin.dead_letters.read(name, tags)
        outcomes = admin.replay_page(letters)
        refused = [str(one) for one in outcomes if isinstance(one, Exception)]
        notice = f"{sum(one is True for one in outcomes):,} of {len(tags):,} dead letters are back to work. "
        return self._back(url("/dead-letters", queue=name), notice + " ".join(refused[:MAX_REFUSED_SHOWN]))

    def replay_many(self, request: Request) -> Response:
        """Begin to put all dead letters of a queue back to work, or those of a task or a reason."""
        admin, name = self._admin(), required(request, "queue")
        wanted = DeadLetterFilter(field(request, "task") or None, field(request, "reason") or None)
        started = self._replays.start(name, admin, admin.search_dead_letters(name, wanted))
        notice = "The replay has begun." if started else "The replay before it still goes on: stop it first."
        return self._back(url("/dead-letters", queue=name), notice)

    def stop_replay(self, request: Request) -> Response:
        """End the replay of a queue behind its present page."""
        name = required(request, "queue")
        self._replays.stop(name)
        return self._back(url("/dead-letters", queue=name), "The replay is stopped. Another one does the rest.")

    def delete(self, request: Request) -> Response:
        """Delete the ticked dead letters of a queue for good."""
        admin, name, tags = self._admin(), required(request, "queue"), _ticked(request)
        admin.check_queue(name)
        deleted = admin.dead_letters.delete(name, tags)
        return self._back(url("/dead-letters", queue=name), f"{deleted:,} of {len(tags):,} dead letters are deleted.")

    def _back(self, to: str, notice: str) -> Response:
        separator = "&" if "?" in to else "?"
        return RedirectResponse(f"{to}{separator}notice={self._presentation.note(notice)}", 303)


def _ticked(request: Request) -> list[str]:
    tags = fields(request, "tag")
    if not tags:
        raise HTTPException(400, "No dead letter is ticked.")
    return tags
