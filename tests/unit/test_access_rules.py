"""The access rules know every command that the sources have."""

import re
from pathlib import Path

import pytest

import celery_redis_plus
from celery_redis_plus.access_rules import ROLES, Role
from celery_redis_plus.scripts import script_names

PACKAGE = Path(celery_redis_plus.__file__).parent
#: Rooms that send commands to the broker's server.
ROOMS = ("broker", "consumer", "maintenance", "transport", "integration", "event_log")
#: The first word of a command, as the connections and pipelines take it.
COMMAND = re.compile(r'(?:command|command_nowait|start|_count)\(\s*b?"([A-Z]+)"|[\[(]\(b?"([A-Z]{3,})", (?!None)')


def commands_in(room):
    for path in (PACKAGE / room).rglob("*.py"):
        for one, other in COMMAND.findall(path.read_text()):
            yield (one or other).lower(), path.name


def test_every_command_of_the_sources_is_a_right_of_some_role():
    known = {command.partition("|")[0] for role in ROLES for command in role.commands()}
    found = {pair for room in ROOMS for pair in commands_in(room)}
    assert len(found) > 20
    assert not {pair for pair in found if pair[0] not in known}


def test_a_worker_may_call_every_script():
    assert set(ROLES[0].scripts) == set(script_names())


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_rule_has_the_prefix_as_it_stands(role: Role):
    rule = role.rule("a*b[c]:").split()
    keys = [word for word in rule if word.startswith(("~", "%"))]
    assert keys
    assert all(key.partition("~")[2].startswith(r"a\*b\[c\]:") for key in keys)
