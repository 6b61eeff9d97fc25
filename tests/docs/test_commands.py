"""Every command of the pages exists: tox's environments, the distribution's extras, our sub-commands."""

import configparser
import re
import shlex
from functools import cache
from importlib import metadata
from importlib.util import find_spec

from celery_redis_plus.cli.main import main
from celery_redis_plus.installation import DISTRIBUTION, FOREIGN
from celery_redis_plus.version import __version__
from tests.docs.blocks import PAGES, ROOT, all_blocks, of_page
from tests.support.program import run_forked

WHEEL = f"dist/redisplus_celery-{__version__}-py3-none-any.whl"
#: What makes `manage.py`.
DJANGO = (ROOT / "docs/django.md").read_text(encoding="utf-8")
#: Commands that are there wherever somebody reads the page.
GIVEN = {"cd", "curl", "eval", "export", "git", "kill", "redis-cli", "sort"}
#: Programs of packages that the page installs before.
INSTALLED = {"django-admin", "pytest", "uvicorn"}


def commands():
    for block in all_blocks("bash", "console", "sh"):
        lines = block.code.splitlines()
        # A block that marks its commands shows what they print as well.
        marked = any(line.startswith("$ ") for line in lines)
        for number, line in enumerate(lines):
            if marked and not line.startswith("$ "):
                continue
            for command in line.removeprefix("$ ").split("&&"):
                words = shlex.split(command, comments=True)
                if words:
                    yield f"{block.page.name}:{block.line + number}: {' '.join(words)}", words


def tox_environments():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    named = {section.partition(":")[2] for section in config.sections() if section.startswith("testenv:")}
    return named | {"py311", "py312", "py313", "py314"}


def without_settings(words):
    return [word for word in words if not re.match(r"[A-Z_]+=", word)]


def test_every_command_exists():
    missing = []
    for where, words in commands():
        try:
            assert_exists(words)
        except (AssertionError, StopIteration, ValueError) as error:
            missing.append(f"{where}: {error}")
    assert missing == []


def assert_exists(words):
    program, *arguments = without_settings(words)
    if program == "tox":
        environments = arguments[arguments.index("-e") + 1].split(",")
        assert set(environments) <= tox_environments()
    elif program == "pip":
        # On PyPI the name is another project's, and ours is not there.
        assert arguments[0] == "uninstall" or not any(word.startswith((FOREIGN, DISTRIBUTION)) for word in arguments)
        assert not any("/" in word and WHEEL not in word for word in arguments)
        extras = {extra for word in arguments for extra in re.findall(r"\[([\w,]+)\]$", word)}
        known = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra")
        assert {name for names in extras for name in names.split(",")} <= set(known)
    elif program == "celery-redis-plus":
        assert main([*sub_command_of(arguments), "--help"]) == 0
    elif program == "celery":
        assert_celery_helps(*(word for word in arguments if word in {"worker", "inspect"}))
    elif words[:2] == ["python", "manage.py"]:
        assert "django-admin startproject shop ." in DJANGO
    elif program == "python" and arguments[0] == "-m":
        assert find_spec(arguments[1])
    elif program == "spark-submit":
        assert any("celery_redis_plus.spark.submit" in word for word in arguments)
        assert find_spec("celery_redis_plus.spark.submit")
    elif program == "python":
        assert (ROOT / arguments[0]).is_file() or any(block.code.startswith(f"# {arguments[0]}\n") for block in blocks_of_pages())
    else:
        assert program in GIVEN | INSTALLED, f"teach {__name__} how to check {program!r}"


def sub_command_of(arguments):
    return arguments[:1] if arguments and not arguments[0].startswith("-") else []


@cache
def blocks_of_pages():
    return [block for page in PAGES for block in of_page(page)]


@cache
def assert_celery_helps(*sub_command):
    ended = run_forked("from celery.__main__ import main; main()", *sub_command, "--help")
    assert ended.returncode == 0, ended.stdout
