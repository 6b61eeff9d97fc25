"""What can be wrong on a server, how it is called, and what the repair does. The documentation prints the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """One way in which a server can be wrong."""

    meaning: str
    #: What the repair does; '' where only a person can.
    repair: str = ""


#: By the names under which violations are reported.
RULES: dict[str, Rule] = {
    "tag-without-hash": Rule("a tag stands in a set without a message", "the tag is removed and counted (`vanished`)"),
    "no-place": Rule(
        "a message is in no set: no consumer will get it",
        "it goes where its fields say: claimed, dead, delayed, else ready",
    ),
    "several-places": Rule(
        "a message is in several sets: it may be delivered twice",
        "it stays where its fields say",
    ),
    "no-payload": Rule("a hash has neither headers nor a body", "the hash and its tag are removed and counted (`vanished`)"),
    "no-headers": Rule("a large message has its body, and has lost its headers"),
    "wrong-fields": Rule(
        "a message's fields do not fit its place",
        "fields are removed or computed; an unacked message without an owner is made ready",
    ),
    "wrong-position": Rule("a score or a time is impossible", "it is computed again"),
    "expires": Rule("a key of a lasting queue would expire", "the expiry is removed"),
    "never-expires": Rule("a key that should vanish has no expiry", "it gets its expiry"),
    "no-expiry": Rule("a ready message with a TTL is not on the list of expiries", "it is listed"),
    "not-in-group": Rule(
        "a group does not count a message of its own",
        "it is counted",
    ),
    "group-member-without-message": Rule("a group counts a message that is not there", "it is forgotten"),
    "group-with-room": Rule("a message is held, though its group has room for it", "it is made ready"),
    "not-in-limiter": Rule(
        "a limiter does not know a message that waits for it, or has a place",
        "one that waits is made ready, one in work gets its place",
    ),
    "limiter-member-without-message": Rule("a limiter has a message waiting that is not there", "it is forgotten"),
    "limiter-without-time": Rule("messages wait for a limiter that nothing looks at", "it is looked at"),
    "no-wakeup": Rule("a queue has ready messages and idle consumers that nothing will wake", "one is notified"),
    "never-delivered": Rule(
        "a message is ready in the reserved queue of undelivered messages",
        "it is made a dead letter there",
    ),
    "no-record": Rule(
        "a lasting queue's record `meta` is gone",
        "it is written as that of a plain queue",
    ),
    "unreadable-record": Rule("a queue's arguments cannot be read"),
    "newer-format": Rule("a queue was written by a newer version of this package"),
    "unlisted": Rule("a queue is missing in the list of queues, or of those swept without consumers", "it is listed"),
    "left-behind": Rule("a transient queue is gone, and its keys are still there", "they are removed"),
    "orphan-keys": Rule("a queue that does not exist has wake-ups or a trash", "they are removed"),
    "other-shard": Rule("a queue, or messages of one, are in a wrong shard (run `shards raise` again with the number in force)"),
    "raise-not-done": Rule("`shards raise` was ended before it was done; messages may be in old shards"),
    "dead-binding": Rule("a binding leads to a queue that does not exist", "it is removed"),
    "unreadable-binding": Rule("a binding cannot be read; messages are routed without it", "it is removed"),
    "unreadable-exchange": Rule("an exchange's record cannot be read, until it is declared again"),
    "no-version": Rule("an exchange's bindings have no version", "they get one"),
    "duplicate-id": Rule("two queues have the same id", "one of them gets a new id"),
    "id-counter-behind": Rule("the next queue would get an id that another has", "the counter is moved on"),
    "not-a-number": Rule("a counter or a time in a queue's record is no number: scripts that need it fail", "it begins anew"),
    "argument-not-a-number": Rule(
        "a number of a queue's arguments, as scripts read it, is none: set the field of `meta` by hand"
    ),
    "not-looked-at": Rule("what a queue's keys hold keeps a part of the check from running; other lines may say what it is"),
    "wrong-type": Rule("a key holds a value that is not ours"),
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as it should be."""

    #: A key of `RULES`.
    rule: str
    #: The queue, or for bindings the exchange.
    owner: str
    #: The tag, the key or the binding; '' for the owner itself.
    subject: str
    detail: str
    #: Whether it is repaired now.
    repaired: bool = False

    def line(self) -> str:
        """Return it in one line, for people."""
        what = f"{self.owner!r} {self.subject}".rstrip()
        return f"{what}: {self.rule}: {self.detail}{' (repaired)' if self.repaired else ''}"


@dataclass(slots=True)
class Account:
    """What a check has seen so far."""

    queues: int = 0
    messages: int = 0
    violations: int = 0
    repaired: int = 0
