"""Adds the top-level folder `lua/` to the packages that pyproject.toml describes, as `celery_redis_plus.lua`.

Everything else is in pyproject.toml. The list of packages is here because setuptools' declarative search
cannot join its result with a folder that lives elsewhere, and a list written by hand would miss the next
package that somebody adds. `importlib.resources.files("celery_redis_plus.lua")` finds the scripts in a wheel,
in a wheel built from an sdist and in an editable install.
"""

from setuptools import find_packages, setup

LUA = "celery_redis_plus.lua"
WEB = "celery_redis_plus.cli.web"

setup(
    packages=[*find_packages(include=["celery_redis_plus", "celery_redis_plus.*"]), LUA],
    package_dir={LUA: "lua"},
    package_data={"celery_redis_plus": ["py.typed"], WEB: ["templates/*.html", "static/*"], LUA: ["*.lua", "include/*.lua"]},
)
