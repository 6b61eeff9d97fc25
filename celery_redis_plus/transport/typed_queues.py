"""What typed queues accept: patterns that a queue was declared with, and models of Python that this process was given.

The patterns (`x-accept-types`) hold for every publisher, in any process. A callable or a model exists only in
the processes that have it: the transport option `accept`, which `configure_app(accept=…)` sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kombu.serialization import loads

from celery_redis_plus.errors import MessageNotAccepted, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.broker.arguments.limits import Limits
    from celery_redis_plus.stored_message import Outgoing


class OutgoingView:
    """A message that is about to be published, as a callable of the option `accept` sees it."""

    def __init__(self, queue: str, message: Mapping[str, Any]) -> None:
        """Show a `message`, as a channel gets it, on its way to `queue`."""
        self.queue = queue
        self.message = message

    @property
    def headers(self) -> Mapping[str, Any]:
        """The application headers; Celery's task headers are among them."""
        headers: Mapping[str, Any] = self.message["headers"]
        return headers

    @property
    def task(self) -> str | None:
        """The name of the Celery task; None for another message."""
        task: str | None = self.headers.get("task")
        return task

    @property
    def content_type(self) -> str | None:
        """The content type of the body, such as `application/json`."""
        content_type: str | None = self.message["content-type"]
        return content_type

    @property
    def type(self) -> str | None:
        """AMQP's property `type`."""
        kind: str | None = self.message["properties"].get("type")
        return kind

    @cached_property
    def payload(self) -> Any:
        """The body, decoded; for a Celery task (protocol 2) the list of args, kwargs and embedded options."""
        return loads(self.message["body"], self.content_type, self.message["content-encoding"], accept=[self.content_type])

    @property
    def value(self) -> Any:
        """What a model is compared with: a task's only positional argument, or else its keyword arguments; or the payload.

        Raises:
            ValueError: a task with several positional arguments, or with both kinds.
        """
        if self.task is None:
            return self.payload
        args, kwargs = self.payload[0], self.payload[1]
        if not args:
            return kwargs
        if len(args) == 1 and not kwargs:
            return args[0]
        raise ValueError(f"{len(args)} positional and {len(kwargs)} keyword arguments; a model takes one argument, or keywords")

    @property
    def names(self) -> tuple[str | None, str | None, str | None]:
        """What patterns are compared with."""
        return self.task, self.content_type, self.type

    def __str__(self) -> str:
        """Say what came."""
        parts = (("task", self.task), ("content type", self.content_type), ("type", self.type))
        return ", ".join(f"{what} {name!r}" for what, name in parts if name) or "a message without task, content type or type"


class Accepted(dict[str, str]):
    """The option `accept` as it stands among a connection's transport options: what can be shown of it.

    `celery inspect stats` and Flower send those options around (`Connection.info`), and no serializer takes a class.
    """

    def __init__(self, models: Mapping[str, Any]) -> None:
        """Show the names of `models`, and keep them."""
        super().__init__({queue: ", ".join(map(_name, _several(wanted))) for queue, wanted in models.items()})
        self.models = models


class TypeCheck:
    """Checks what this process publishes."""

    def __init__(self, accept: Mapping[str, Any] | None) -> None:
        """Check by `accept`, the option of this name.

        Raises:
            OptionError: something in it is neither a callable nor a known kind of model.
        """
        #: Whether any queue is checked by something that only Python has. Every publish looks here.
        self.queues = bool(accept)
        accept = accept.models if isinstance(accept, Accepted) else accept
        self._readers: dict[str, list[tuple[str, Callable[[OutgoingView], None]]]] = {}
        for queue, wanted in (accept or {}).items():
            self._readers[queue] = [_reader(queue, one) for one in _several(wanted)]

    def check(self, queue: str, message: Mapping[str, Any], kind: str = "queue") -> None:
        """Refuse what none of the callables and models of a queue, or exchange, accepts.

        Raises:
            MessageNotAccepted: naming the queue, what came, what it accepts, and what each one said.
        """
        readers = self._readers.get(queue)
        if not readers:
            return
        publication = OutgoingView(queue, message)
        said = []
        for name, read in readers:
            try:
                read(publication)
            except (ValueError, TypeError) as error:
                said.append(f"{name}: {error}")
            else:
                return
        accepted = ", ".join(name for name, _ in readers)
        raise MessageNotAccepted(f"{kind} {queue!r} accepts {accepted}; what came is {publication}. {'; '.join(said)}")

    @staticmethod
    def check_declared(queue: str, limits: Limits, outgoing: Outgoing, kind: str = "queue") -> None:
        """Refuse what none of the `x-accept-types` of a queue, or exchange, matches.

        Raises:
            MessageNotAccepted: naming the queue, what came and what it accepts.
        """
        if outgoing.message is None:
            return
        publication = OutgoingView(queue, outgoing.message)
        if not limits.accept(publication.names):
            accepted = ", ".join(map(repr, limits.accepts))
            raise MessageNotAccepted(f"{kind} {queue!r} accepts {accepted} (x-accept-types); what came is {publication}")


def _several(wanted: Any) -> Sequence[Any]:
    return wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]


def _name(wanted: Any) -> str:
    return getattr(wanted, "__qualname__", None) or repr(wanted)


def _reader(queue: str, wanted: Any) -> tuple[str, Callable[[OutgoingView], None]]:
    name = _name(wanted)
    from celery_redis_plus.transport.model_readers import reader_of

    read = reader_of(wanted)
    if read is not None:
        return name, lambda publication: read(publication.value)
    if isinstance(wanted, type) or not callable(wanted):
        raise OptionError(
            f"transport option accept has {wanted!r} for queue {queue!r}; allowed are a callable, a pydantic model, a msgspec "
            "Struct, a dataclass, or a list of these"
        )

    def ask(publication: OutgoingView) -> None:
        if wanted(publication) is False:
            raise ValueError("refused")

    return name, ask
