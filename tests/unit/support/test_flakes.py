"""Flaky tests of a CI run are counted, named, kept on a list, and too many of them fail the run."""

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from tests.support.flakes import LIST, main

ROOT = Path(__file__).parents[3]
TODAY = date(2026, 11, 23)


def report(path, failed, passed=()):
    cases = [f'<testcase classname="tests.x" name="{name}"><failure/></testcase>' for name in failed]
    cases += [f'<testcase classname="tests.x" name="{name}"/>' for name in passed]
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def ran(folder, *flaky, still_failing=()):
    report(folder / "test.xml", [*flaky, *still_failing], ["another"])
    report(folder / "test-retry.xml", still_failing, flaky)


@pytest.mark.parametrize(("flaky", "status"), [([], 0), (list("ab"), 0), (list("abc"), 1)])
def test_more_than_two_flaky_tests_fail_a_run(tmp_path, capsys, flaky, status):
    ran(tmp_path, *flaky)
    assert main(tmp_path, TODAY) == status
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"FLAKY: {len(flaky)} (all runs: {tmp_path / LIST})", *(f"  tests.x::{name}" for name in flaky)]


def test_what_fails_twice_is_no_flake(tmp_path, capsys):
    ran(tmp_path, "a", still_failing=["b"])
    assert main(tmp_path, TODAY) == 0
    assert "tests.x::b" not in capsys.readouterr().out


def test_a_run_without_a_second_time_has_no_flakes(tmp_path, capsys):
    report(tmp_path / "test.xml", [], ["a"])
    assert main(tmp_path, TODAY) == 0
    assert capsys.readouterr().out.startswith("FLAKY: 0 ")


@pytest.mark.parametrize(("day", "status"), [(17, 1), (16, 0)])
def test_a_test_that_is_flaky_twice_in_a_week_fails_a_run(tmp_path, capsys, day, status):
    ran(tmp_path, "a")
    main(tmp_path, date(2026, 11, day))
    assert main(tmp_path, TODAY) == status
    assert (tmp_path / LIST).read_text() == f"2026-11-{day} tests.x::a\n2026-11-23 tests.x::a\n"


def test_reports_of_pytest_are_understood(tmp_path):
    """The first of two tests fails at its first run only."""
    (tmp_path / "test_sample.py").write_text(
        "import os\n\ndef test_flaky():\n    assert 'AGAIN' in os.environ\n\ndef test_fine():\n    pass\n"
    )
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_sample.py"]
    for name, more in (("step", {}), ("step-retry", {"AGAIN": "1"})):
        subprocess.run(
            [*run, f"--junit-xml={name}.xml"],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            env={"PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more},
        )
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.flakes", tmp_path], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["  test_sample::test_flaky"])
