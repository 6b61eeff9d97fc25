"""Adds the top-level folder `lua/` to the packages that pyproject.toml describes, as `celery_redis_plus.lua`.

It also makes the description for a package index of the README. Everything else is in pyproject.toml. The list of packages
is here because setuptools' declarative search cannot join its result with a folder that lives elsewhere, and a list written by
hand would miss the next package that somebody adds. `importlib.resources.files("celery_redis_plus.lua")` finds the scripts in
a wheel, in a wheel built from an sdist and in an editable install.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

LUA = "celery_redis_plus.lua"
SPARK = "celery_redis_plus.spark"
WEB = "celery_redis_plus.cli.web"

#: A Markdown link to a file of this repository.
FILE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)")


def description() -> str:
    """Return the README with the text of its links to files, which a package index does not have."""
    return FILE_LINK.sub(r"\1", Path(__file__).with_name("README.md").read_text(encoding="utf-8"))


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    packages=[*find_packages(include=["celery_redis_plus", "celery_redis_plus.*"]), LUA],
    package_dir={LUA: "lua"},
    package_data={
        "celery_redis_plus": ["py.typed"],
        WEB: ["templates/*.html", "static/*"],
        LUA: ["*.lua", "include/*.lua"],
        SPARK: ["sql/*.sql"],
    },
)
