"""Every key, field and counter is described, and the scripts' headers name no other ones."""

from __future__ import annotations

import dataclasses
import inspect
import re
from importlib import resources
from pathlib import Path

from field_descriptions import MESSAGE_FIELDS, QUEUE_FIELDS
from key_descriptions import DESCRIPTIONS, describe
from script_headers import keys_in_header, writers

import celery_redis_plus
from celery_redis_plus.broker.queues.counters import Counters
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance import service
from celery_redis_plus.record_fields import COUNTERS, FANOUT_COUNTERS, NOW, PROCESS_COUNTERS, PROCESS_GAUGES
from celery_redis_plus.scripts import script_names

LUA = resources.files("celery_redis_plus.lua")
INCLUDES = sorted(f"include/{path.name}" for path in LUA.joinpath("include").iterdir())
FILES = [*INCLUDES, *(f"{name}.lua" for name in script_names())]
TYPES = {(one.kind, one.type) for one in DESCRIPTIONS}


def spelled_keys():
    """Return each key, and each prefix of keys, that keys.py spells."""
    keys = Keys()
    spelled = {
        *vars(keys).values(),
        *vars(keys.queue("Q")).values(),
        *keys.fanout("X", "/0."),
        *keys.processes,
        *keys.track("ID"),
        keys.client_wakeup("ID"),
        keys.binding("X"),
    }
    return sorted(key for key in spelled if isinstance(key, bytes))


def lua(path):
    return LUA.joinpath(path).read_text(encoding="utf-8")


def test_every_key_that_is_spelled_has_a_description():
    assert [key for key in spelled_keys() if not any(one.key.startswith(key) for one in DESCRIPTIONS)] == []


def test_headers_name_only_keys_that_are_described_and_with_their_type():
    named = {(path, kind, type_) for path in FILES for kind, type_, _ in keys_in_header(path)}
    assert sorted(one for one in named if one[1:] not in TYPES) == [], "describe them in key_descriptions.py"


def test_every_script_names_its_keys():
    assert [name for name in script_names() if not keys_in_header(f"{name}.lua")] == []


def test_every_key_has_a_writer_a_type_and_sentences():
    def is_described(one):
        types = {"string", "hash", "list", "set", "zset", "stream"}
        return bool(writers(one) or one.plain_writers) and one.type in types and one.content[-1:] + one.lives[-1:] == ".."

    assert [one.pattern for one in DESCRIPTIONS if not is_described(one)] == []


def test_every_key_is_found_by_its_own_description():
    found = [(one, describe(one.key)) for one in DESCRIPTIONS]
    # Producers of queues and of fanout exchanges have keys of one form.
    wrong = [one.pattern for one, other in found if other is None or (other.kind, other.type) != (one.kind, one.type)]
    assert wrong == []


def test_every_counter_of_the_scripts_is_described():
    counted = {
        name for path in FILES for name in re.findall(r"HINCRBY', (?:KEYS\[\d\]|meta|\w+\.meta), '(\w+)'", lua(path))
    }  # fmt: skip

    described = {name for one in DESCRIPTIONS for name in one.fields} | {"version"}
    assert counted <= described
    assert len(counted) > 15


def test_every_field_that_is_described_is_used():
    package = Path(celery_redis_plus.__file__).parent
    python = "".join(path.read_text() for room in ("broker", "maintenance") for path in package.joinpath(room).rglob("*.py"))
    code = "".join(map(lua, FILES)) + python
    for name in {**QUEUE_FIELDS, **MESSAGE_FIELDS}:
        stem = name.removesuffix("_logged")
        assert f"'{stem}'" in code or f'"{stem}"' in code, f"nothing uses the field {name}"


def test_the_counters_that_a_queue_tells_are_described():
    told = {field.name for field in dataclasses.fields(Counters)}

    assert told <= {*COUNTERS, *NOW}
    assert {*NOW} <= told


def test_the_counters_of_exchanges_and_processes_exist():
    for name in FANOUT_COUNTERS:
        assert f"'{name}'" in "".join(map(lua, FILES))
    source = inspect.getsource(service.MaintenanceService.figures)
    assert set(re.findall(r'"(\w+)":', source)) == {*PROCESS_COUNTERS, *PROCESS_GAUGES}
