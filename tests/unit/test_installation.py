"""What the extras bring, and the other project on PyPI that has the same names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from celery_redis_plus import installation


def brought_by(extra):
    """Return the requirements of an extra, those of the extras that it names included."""
    requirements = map(Requirement, metadata.requires(installation.DISTRIBUTION))
    direct = [one for one in requirements if one.marker is not None and re.search(rf"extra == .{extra}\b", str(one.marker))]
    named = {name for one in direct for name in one.extras if one.name == installation.DISTRIBUTION}
    own = {f"{one.name}{one.specifier}" for one in direct if one.name != installation.DISTRIBUTION}
    return own.union(*map(brought_by, named))


@pytest.mark.parametrize("extra", installation.EXTRAS)
def test_the_commands_install_what_the_extras_bring(extra):
    assert set(installation.EXTRAS[extra]) == brought_by(extra)


def test_a_command_can_be_pasted():
    assert installation.install_command("parquet") == "pip install 'numpy>=2' 'pyarrow>=18'"


def test_this_package_is_not_taken_for_the_other_project():
    assert installation.foreign_version() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        installation.warn_of_foreign_distribution()


@pytest.fixture
def other_project(tmp_path, monkeypatch):
    """Put the other project's distribution first on the path."""
    folder = tmp_path / "celery_redis_plus-0.4.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-redis-plus\nVersion: 0.4.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_other_project_is_named_with_what_to_do(other_project):
    with pytest.warns(RuntimeWarning, match=r"celery-redis-plus 0\.4\.1 is another project.*pip uninstall celery-redis-plus"):
        installation.warn_of_foreign_distribution()


def test_importing_celery_warns_where_the_other_project_has_replaced_our_files(other_project):
    package = other_project / "celery_redis_plus"
    package.mkdir()
    # Its `__init__.py` and `signals.py` in the place of ours.
    (package / "signals.py").touch()
    (package / "__init__.py").write_text(
        f"__path__.append({str(Path(installation.__file__).parent)!r})\nfrom .transport import Transport\n"
    )
    code = "import kombu.serialization"
    environment = {**os.environ, "PYTHONPATH": str(other_project)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
    )

    warning, _, error = ran.stderr.partition("Traceback")
    assert "celery-redis-plus 0.4.1 is another project" in warning
    assert "pip uninstall celery-redis-plus, then install redisplus-celery again" in warning
    assert "ImportError" in error


def test_a_build_from_before_the_distribution_was_renamed_is_not_the_other_project(other_project):
    (other_project / "celery_redis_plus-0.4.1.dist-info/entry_points.txt").write_text("[kombu.serializers]\nx = y:z\n")
    assert installation.foreign_version() is None


def test_a_clone_on_the_path_needs_no_distribution(monkeypatch):
    monkeypatch.setattr(installation, "FOREIGN", "a-name-that-nothing-has")
    assert installation.foreign_version() is None
