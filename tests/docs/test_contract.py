"""docs/design/contract.md against the code: what functions call, and which scripts change a state of a message."""

from __future__ import annotations

import re
import sys

from tests.docs.blocks import ROOT

sys.path.append(str(ROOT / "docs"))
from contract_operations import NO_STATE, OPERATIONS

ALL = [one for part in OPERATIONS.values() for one in part]
#: A repair, which is no transition of the page of states.
REPAIRS = {"check"}


def transitions():
    """Return the scripts in the table of docs/design/states.md."""
    text = (ROOT / "docs/design/states.md").read_text(encoding="utf-8").partition("## Transitions")[2].partition("\n\n## ")[0]
    rows = (line for line in text.splitlines() if line.startswith("|"))
    return {name for row in rows for name in re.findall(r"`lua/(\w+)\.lua`", row)}


def test_an_operation_changes_states_where_its_scripts_do():
    changing = transitions()
    assert changing
    wrong = [one.name for one in ALL if (one.states != NO_STATE) != bool(changing & set(one.scripts)) and one.name not in REPAIRS]
    assert wrong == []


def test_the_room_of_an_operation_calls_its_scripts():
    def is_called(script, doors):
        folders = {(ROOT / "celery_redis_plus" / door.partition(":")[0]).parent for door in doors}
        return any(f'"{script}"' in file.read_text(encoding="utf-8") for folder in folders for file in folder.glob("*.py"))

    assert [(one.name, script) for one in ALL for script in one.scripts if not is_called(script, one.doors)] == []
