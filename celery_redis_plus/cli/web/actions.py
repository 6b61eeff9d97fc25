"""What the forms of the pages do. Each ends with a notice on the page that it came from."""

from __future__ import annotations

import logging
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from celery_redis_plus.broker.queues.audit import Actor, acting
from celery_redis_plus.cli.web.bulk_actions import BulkAction
from celery_redis_plus.cli.web.listings import FILTERS, letters_of
from celery_redis_plus.cli.web.requests import field, fields, parameter, required
from celery_redis_plus.cli.web.sessions import SESSION_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.dead_letters.store import DeadLetter
    from celery_redis_plus.cli.web.access import Access
    from celery_redis_plus.cli.web.bulk_actions import BulkActions, Treat
    from celery_redis_plus.cli.web.presentation import Presentation

logger = logging.getLogger(__name__)

#: How long a pause may be, by the value of its form.
PAUSES: Final = {"": None, "900": 900.0, "3600": 3_600.0, "28800": 28_800.0}
#: The pages with actions on many messages, and the parameter that has their queue.
PATHS: Final = {"/dead-letters": "queue", "/queue": "name"}
#: Refusals of a replay that a notice has.
MAX_REFUSED_SHOWN: Final = 3


def by_user(action: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Return an action that the audit log knows as one of the web page, from the address of its request."""

    @wraps(action)
    def act(request: Request) -> Response:
        with acting(Actor(request.state.user.name, "web", request.state.address)):
            return action(request)

    return act


class Actions:
    """What POST does; arguments as of `Pages`."""

    def __init__(
        self, admin: Callable[[], BrokerAdmin], access: Access, presentation: Presentation, bulk: BulkActions
    ) -> None:  # fmt: skip
        self._admin = admin
        self._bulk = bulk
        self._access = access
        self._presentation = presentation
        self._url = presentation.url

    def login(self, request: Request) -> Response:
        """Give the cookie to a user who knows the token, from the login URL or from the form, or a name and its password."""
        access, address = self._access, request.state.address
        wait_s = access.failed.wait_s(address)
        if wait_s:
            return self._presentation.refusal(request, 429, f"Too many logins have failed: wait for {wait_s:.0f} seconds.")
        name, secret = "", parameter(request, "token")
        if request.method == "POST":
            # A password may begin or end with a space.
            name, secret = field(request, "name"), next(iter(fields(request, "token")), "")
        if secret:
            # Before it is looked at, which takes a while: many at once count as well.
            access.failed.note(address)
        user = access.login(name, secret) if secret else None
        if user is None:
            if secret:
                what = f"name or password ({name!r:.120})" if access.token is None else "token"
                logger.warning("a login with a wrong %s, from %s", what, address)
            wrong = "This is not the token." if access.token is not None else "Name or password is wrong."
            return self._presentation.refusal(request, 401, wrong if secret else "")
        access.failed.take_back(address)
        request.state.user = user
        # No redirect: the browser would not send a strict cookie behind a link on another site, a chat for example.
        answer = self._presentation.page(request, "logged_in.html")
        answer.set_cookie(
            access.cookie, access.sessions.open(user), max_age=round(SESSION_S), httponly=True, samesite="strict",
            secure=access.is_secure(request), path=access.url_prefix or "/",
        )  # fmt: skip
        return answer

    def logout(self, request: Request) -> Response:
        """End the session, so that a copy of its cookie opens nothing, and take the cookie away."""
        self._access.sessions.close(self._access.session_of(request))
        answer = self._presentation.refusal(request, 200, "Logged out.")
        answer.delete_cookie(self._access.cookie, path=self._access.url_prefix or "/", httponly=True, samesite="strict")
        return answer

    def pause(self, request: Request) -> Response:
        """Pause a queue."""
        name, reason, length = required(request, "name"), field(request, "reason"), field(request, "for")
        if length not in PAUSES:
            raise HTTPException(400, f"for={length:.50}: allowed are {', '.join(filter(None, PAUSES))} seconds, or none.")
        self._admin().pause(name, reason, PAUSES[length])
        return self._back(self._url("/queue", name=name), f"Queue {name!r} is paused.")

    def resume(self, request: Request) -> Response:
        """End the pause of a queue."""
        name = required(request, "name")
        was_paused = self._admin().resume(name)
        return self._back(self._url("/queue", name=name), f"Queue {name!r} {'goes on' if was_paused else 'was not paused'}.")

    def replay(self, request: Request) -> Response:
        """Put the ticked dead letters of a queue back to work."""
        admin, name, tags = self._admin(), required(request, "queue"), _ticked(request)
        admin.check_queue(name)
        letters = admin.dead_letters.read(name, tags)
        replayed, refused = _replay(admin, letters)
        notice = f"{replayed:,} of {len(tags):,} dead letters are back to work. "
        return self._back(self._url("/dead-letters", queue=name), notice + " ".join(refused[:MAX_REFUSED_SHOWN]))

    def replay_many(self, request: Request) -> Response:
        """Begin to put all dead letters of a queue back to work, or those of a task or a reason."""
        admin = self._admin()
        return self._treat_dead_letters(request, admin, "replay", "back to work", partial(_replay, admin))

    def delete_many(self, request: Request) -> Response:
        """Begin to delete all dead letters of a queue, or those of a task or a reason, for good."""
        admin, name = self._admin(), required(request, "queue")

        def treat(letters: Any) -> tuple[int, list[str]]:
            return admin.dead_letters.delete(name, [letter.tag for letter in letters]), []

        return self._treat_dead_letters(request, admin, "deletion", "deleted", treat)

    def _treat_dead_letters(
        self, request: Request, admin: BrokerAdmin, action: str, done_as: str, treat: Treat
    ) -> Response:  # fmt: skip
        name = required(request, "queue")
        chosen = {key: field(request, key) or None for key in FILTERS}
        wanted = letters_of(chosen)
        search = admin.search_dead_letters(name, wanted)
        named = {"replay": "replay", "deletion": "delete dead letters"}[action]
        audited = admin.audit.action(named, name, in_steps=True, **chosen)
        bulk = BulkAction(action, done_as, len(search.tags), search.pages(), treat, audited=audited)
        return self._begin("/dead-letters", name, bulk)

    def move_many(self, request: Request) -> Response:
        """Begin to move the waiting messages of a task into another queue."""
        admin, name, to = self._admin(), required(request, "name"), field(request, "to")
        if to == name:
            raise HTTPException(400, f"{to!r} is the queue that they are in: name another one.")
        admin.check_queue(to)

        def treat(tags: Any) -> tuple[int, list[str]]:
            return sum(admin.messages.move(tag, to, name) is not None for tag in tags), []

        return self._treat_waiting(request, admin, "move", f"in queue {to!r}", treat, to=to)

    def cancel_many(self, request: Request) -> Response:
        """Begin to cancel the waiting messages of a task: they are deleted for good."""
        admin, name = self._admin(), required(request, "name")

        def treat(tags: Any) -> tuple[int, list[str]]:
            return len(admin.cancel(name, tags)), []

        return self._treat_waiting(request, admin, "cancellation", "cancelled", treat)

    def _treat_waiting(
        self, request: Request, admin: BrokerAdmin, action: str, done_as: str, treat: Treat, to: str | None = None
    ) -> Response:  # fmt: skip
        name, task = required(request, "name"), field(request, "task")
        if not task:
            raise HTTPException(400, "The form lacks the task: its name, or a pattern such as shop.*")
        overview, pages = admin.overview_of(name), admin.waiting_tags(name, task)
        named = {"move": "move", "cancellation": "cancel"}[action]
        audited = admin.audit.action(named, name, in_steps=True, task=task, to=to)
        bulk = BulkAction(action, done_as, overview.ready + overview.delayed, pages, treat, audited=audited)
        return self._begin("/queue", name, bulk)

    def purge(self, request: Request) -> Response:
        """Begin to delete all waiting messages of a queue for good."""
        admin, name = self._admin(), required(request, "name")
        overview = admin.overview_of(name)
        total = overview.ready + overview.delayed

        def treat(_: Any) -> tuple[int, list[str]]:
            return admin.purge(name, bulk.note_progress), []

        bulk = BulkAction("purge", "deleted", total, [(0, None)], treat)
        return self._begin("/queue", name, bulk)

    def _begin(self, page: str, queue: str, action: BulkAction) -> Response:
        started = self._bulk.start(page, queue, action)
        notice = f"The {action.name} has begun." if started else "The action before it still goes on: stop it first."
        return self._back_to(page, queue, notice)

    def stop(self, request: Request) -> Response:
        """End the action of a page behind its present step."""
        page, queue = required(request, "page"), required(request, "queue")
        if page not in PATHS:
            raise HTTPException(400, f"page={page:.50}: allowed are {', '.join(PATHS)}.")
        self._bulk.stop(page, queue)
        return self._back_to(page, queue, "It is stopped. Another one does the rest.")

    def _back_to(self, page: str, queue: str, notice: str) -> Response:
        return self._back(self._url(page, **{PATHS[page]: queue}), notice)

    def delete(self, request: Request) -> Response:
        """Delete the ticked dead letters of a queue for good."""
        admin, name, tags = self._admin(), required(request, "queue"), _ticked(request)
        admin.check_queue(name)
        deleted = admin.dead_letters.delete(name, tags)
        return self._back(self._url("/dead-letters", queue=name), f"{deleted:,} of {len(tags):,} dead letters are deleted.")

    def _back(self, to: str, notice: str) -> Response:
        separator = "&" if "?" in to else "?"
        return RedirectResponse(f"{to}{separator}notice={self._presentation.note(notice)}", 303)


def _replay(admin: BrokerAdmin, letters: Sequence[DeadLetter]) -> tuple[int, list[str]]:
    """Put dead letters back to work; return how many were, and why others stay."""
    outcomes = admin.replay_page(letters)
    return sum(one is True for one in outcomes), [str(one) for one in outcomes if isinstance(one, Exception)]


def _ticked(request: Request) -> list[str]:
    tags = fields(request, "tag")
    if not tags:
        raise HTTPException(400, "No dead letter is ticked.")
    return tags
