"""docs/design/contract.md against the code: what an operation's functions call."""

from __future__ import annotations

import sys

from tests.docs.blocks import ROOT

sys.path.append(str(ROOT / "docs"))
from contract_operations import OPERATIONS

ALL = [one for part in OPERATIONS.values() for one in part]


def test_the_room_of_an_operation_calls_its_scripts():
    def is_called(script, doors):
        folders = {(ROOT / "celery_redis_plus" / door.partition(":")[0]).parent for door in doors}
        return any(f'"{script}"' in file.read_text(encoding="utf-8") for folder in folders for file in folder.glob("*.py"))

    assert [(one.name, script) for one in ALL for script in one.scripts if not is_called(script, one.doors)] == []
