"""The installed distribution: what it contains, what it declares, what importing it does."""

import os
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import celery_redis_plus
from celery_redis_plus.installation import DISTRIBUTION

PACKAGE = Path(celery_redis_plus.__file__).parent


def run_python(code: str) -> str:
    """Run `code` in a new interpreter, away from the project's folder, and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(os.sep),
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_version_of_package_and_distribution_agree():
    assert metadata.version(DISTRIBUTION) == celery_redis_plus.__version__


def test_scripts_are_found_wherever_the_package_is_installed():
    found = run_python(
        "from importlib.resources import files; f = files('celery_redis_plus.lua'); "
        "print((f / 'publish.lua').is_file(), (f / 'include' / 'now.lua').is_file())"
    )

    assert found == "True True"


def test_every_folder_with_modules_is_a_package_so_that_it_ships():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}

    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_package_declares_its_types():
    assert resources.files("celery_redis_plus").joinpath("py.typed").is_file()


def test_every_entry_point_can_be_loaded():
    entry_points = metadata.distribution(DISTRIBUTION).entry_points

    assert {entry_point.group for entry_point in entry_points} >= {"console_scripts", "kombu.serializers"}
    for entry_point in entry_points:
        entry_point.load()


def test_redis_range_meets_the_range_of_kombu():
    ours = next(
        requirement.specifier for requirement in map(Requirement, metadata.requires(DISTRIBUTION)) if requirement.name == "redis"
    )
    kombus = next(
        requirement.specifier
        for requirement in map(Requirement, metadata.requires("kombu"))
        if requirement.name == "redis" and requirement.marker.evaluate({"extra": "redis"})
    )

    assert metadata.version("redis") in ours
    assert metadata.version("redis") in kombus


@pytest.mark.parametrize("scheme", ["redisplus", "redispluss", "valkey", "valkeys"])
def test_importing_celery_alone_makes_the_url_scheme_known(scheme):
    known = run_python(
        "from celery import Celery; app = Celery(broker='memory://'); app.connection_for_write(); "
        f"from kombu.transport import TRANSPORT_ALIASES; print(TRANSPORT_ALIASES['{scheme}'])"
    )

    assert known == "celery_redis_plus.transport:Transport"


def test_importing_the_package_makes_the_url_scheme_known_to_plain_kombu():
    known = run_python("import celery_redis_plus, kombu.transport; print(kombu.transport.TRANSPORT_ALIASES['redisplus'])")

    assert known == "celery_redis_plus.transport:Transport"


@pytest.mark.parametrize("module", ["redis", "celery", "celery_redis_plus.transport.transport"])
def test_importing_the_package_loads_nothing_heavy(module):
    assert run_python(f"import sys, celery_redis_plus; print({module!r} in sys.modules)") == "False"


def test_importing_the_package_loads_no_more_of_the_standard_library_s_sockets_than_kombu_does():
    """gevent and eventlet may patch after the entry point is loaded; what kombu imports is not ours."""
    modules = "print(*(m for m in ('socket', 'ssl', 'select', 'selectors', 'threading') if m in sys.modules))"

    assert run_python(f"import sys, celery_redis_plus; {modules}") == run_python(
        f"import sys, kombu.serialization, kombu.transport; {modules}"
    )


def test_unknown_attribute_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonesuch'"):
        celery_redis_plus.nonesuch  # noqa: B018


def test_python_m_runs_the_command_line():
    result = subprocess.run(
        [sys.executable, "-m", "celery_redis_plus", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "celery-redis-plus" in result.stdout
