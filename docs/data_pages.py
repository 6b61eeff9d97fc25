"""The pages about the data on the server: keys with their writers, and the operations that change them."""

from __future__ import annotations

from contract_operations import NO_STATE, OPERATIONS, Operation
from key_descriptions import DESCRIPTIONS, SECTIONS, TAKEN, WITH_MEMBERS, WITH_QUEUE, KeyDescription
from script_headers import writers

from celery_redis_plus.record_fields import COUNTERS, FANOUT_COUNTERS
from celery_redis_plus.scripts import script_names

DATA_INTRO = """# Data in Redis

Every key on the server. `Q` means a queue, `X` an exchange, `/0.` the `fanout_prefix` with the database's number. Each key begins
with `global_keyprefix`, on Redis Cluster with a hash tag. In a queue's name a leading `}` or `%` is escaped (`%7D`, `%25`).

A **tag** identifies a message: 11 hexadecimal digits of server time (ms), 8 of the queue's count of publishes, one character, and
the queue's id in base 36. The character says whether the queue has limits (`~`), the message events (`-`), both (`=`) or neither
(`.`). A message is in exactly one **place**, [its state](states.md).

Times are ms since the epoch. A key lives as long as it has members, unless it says otherwise; in a transient queue each has the
record's `ttl`. A star (*) marks the keys of a lasting queue that was only declared. The first character is the key's column in
[the matrix of writers](#who-writes-what); *Writer* names others, by plain commands. A waiting client takes its wake-up (BZMPOP).
"""
#: What the page says once.
TRANSIENT = "; in a transient queue it has the record's `ttl`"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
#: Fields that other pages list.
COUNTED = {
    "meta:{Q}": (COUNTERS, "metrics.md#counters-of-a-queue"),
    "fanout:{/0.X}": (FANOUT_COUNTERS, "metrics.md#counters-of-a-fanout-exchange"),
}
CONTRACT_INTRO = """# The contract with the store

Every change on the server is one of these operations. Each has its functions (paths are relative to `celery_redis_plus/`), its
scripts in `lua/`, the states of a message before and after, and the answers that are no success. The header of a script tells its
work, its keys, answers and the bound of its cost, [the matrix](data.md#who-writes-what) the keys that it writes.

`NOQUEUE` says that the queue has no record, *stale* that an old claim number changes nothing. Each operation raises the errors of
`redis.exceptions` as [errors](../errors.md) of this package. After a lost reply a publish is retried under its number, a
settlement under its claim number, and an ack again.
"""


def data_page() -> str:
    """Return the page of all keys on the server."""
    parts = [DATA_INTRO]
    letters = _letters()
    for title, descriptions in SECTIONS.items():
        parts.append(f"\n## {title}\n\n")
        for one in descriptions:
            star = "*" if one.of_empty_queue else ""
            plain = f" Writer: {one.plain_writers}." if one.plain_writers not in ("", TAKEN) else ""
            letter = letters.get(_column(one), "-")
            lives = "" if one.lives in (WITH_QUEUE, WITH_MEMBERS) else f" *{one.lives.replace(TRANSIENT, '')}*"
            parts.append(f"* **{letter}** `{one.pattern}`{star} ({one.type}): {one.content}{lives}{plain}\n")
    parts.append(_matrix(letters))
    for one in DESCRIPTIONS:
        if one.fields:
            counted, page = COUNTED.get(one.pattern, ({}, ""))
            parts.append(f"\n## Fields of `{one.pattern}`\n\n")
            parts += [f"* `{name}`: {meaning}\n" for name, meaning in one.fields.items() if name not in counted]
            if counted:
                parts.append(f"\nand [its counters](../{page}).\n")
    return "".join(parts)


def _column(one: KeyDescription) -> tuple[str, ...]:
    """Return what decides which keys have one column: their kind, and who writes them."""
    return (one.kind, *writers(one))


def _letters() -> dict[tuple[str, ...], str]:
    """Return the letter of each column; keys of one kind that the same scripts write share it."""
    columns = [column for column in dict.fromkeys(map(_column, DESCRIPTIONS)) if column[1:]]
    if len(columns) > len(LETTERS):
        raise SystemExit(f"docs/data_pages.py: {len(columns)} columns, and {len(LETTERS)} letters")
    return dict(zip(columns, LETTERS, strict=False))


def _matrix(letters: dict[tuple[str, ...], str]) -> str:
    rows = {name: "".join(letter if name in column[1:] else "." for column, letter in letters.items()) for name in script_names()}
    width = max(map(len, rows))
    lines = [f"{name.ljust(width)} {row}" for name, row in rows.items() if row.strip(".")]
    reading = ", ".join(f"`{name}`" for name, row in rows.items() if not row.strip("."))
    return (
        "\n## Who writes what\n\nEach row is a script in `lua/`, each column a key that it may write.\n\n"
        f"```text\n{chr(10).join(lines)}\n```\n\nThese only read: {reading}.\n"
    )


def contract_page() -> str:
    """Return the page of the operations. Ends with a message where a script has no operation, or two."""
    named = [name for part in OPERATIONS.values() for one in part for name in one.scripts]
    if sorted(named) != script_names():
        raise SystemExit(f"docs/contract_operations.py: {sorted(set(named) ^ set(script_names()))} or a script twice")
    parts = [CONTRACT_INTRO]
    for title, operations in OPERATIONS.items():
        parts.append(f"\n## {title}\n\n")
        parts += map(_operation, operations)
    return "".join(parts)


def _operation(one: Operation) -> str:
    doors, scripts = (", ".join(f"`{name}`" for name in names) for names in (one.doors, one.scripts))
    states = "" if one.states == NO_STATE else f". *States:* {one.states}"
    refuses = "" if one.refuses == "none" else f". *Refuses:* {one.refuses}"
    return f"* **{one.name}** ({doors}): {scripts}{states}{refuses}\n"
