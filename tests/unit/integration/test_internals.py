"""Private names of Celery, billiard and kombu stand in the compat modules, and nowhere else."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "celery_redis_plus"
#: Our own private names that travel between modules, and Python's.
OWN = ("_crp_", "__")
COMPAT = {"compat.py", "worker_compat.py"}


def private_names(path):
    """Return the private names that a module asks another object for, as attribute or by getattr and the like."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"getattr", "hasattr", "setattr", "wrap"}
        ):
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.startswith("_"):
                yield name.value


def test_private_names_stand_in_compat():
    # `super()._announce_revoked` is what a mixin overrides; `compat` asks whether it is there.
    allowed = {"_get_current_object", "_exit", "_announce_revoked"}
    paths = [path for room in ("integration", "transport") for path in (PACKAGE / room).glob("*.py") if path.name not in COMPAT]
    found = {path.name: {name for name in private_names(path) if not name.startswith(OWN)} - allowed for path in paths}

    assert len(found) > 20
    assert {name: names for name, names in found.items() if names} == {}
