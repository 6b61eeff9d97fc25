"""What the extras bring, and the other project on PyPI that has the same names."""

from __future__ import annotations

import re
import warnings
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from celery_redis_plus import installation


def brought_by(extra):
    """Return the requirements of an extra, those of the extras that it names included."""
    requirements = map(Requirement, metadata.requires("celery-redis-plus"))
    direct = [one for one in requirements if one.marker is not None and re.search(rf"extra == .{extra}\b", str(one.marker))]
    named = {name for one in direct for name in one.extras if one.name == "celery-redis-plus"}
    own = {f"{one.name}{one.specifier}" for one in direct if one.name != "celery-redis-plus"}
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
    """Put another project's distribution of our name first on the path."""
    folder = tmp_path / "celery_redis_plus-0.3.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-redis-plus\nVersion: 0.3.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_other_project_is_named_with_what_to_do(other_project):
    with pytest.warns(RuntimeWarning, match=r"celery-redis-plus 0\.3\.0 is not this package.*pip uninstall celery-redis-plus"):
        installation.warn_of_foreign_distribution()


def test_a_clone_on_the_path_is_no_installation(monkeypatch):
    monkeypatch.setattr(installation, "DISTRIBUTION", "a-name-that-nothing-has")
    assert installation.foreign_version() is None
