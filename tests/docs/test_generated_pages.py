import os
import re
import subprocess
import sys

from tests.docs.blocks import ROOT


def test_generated_pages_are_current():
    result = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        # A Spark session that this process had has set it.
        env={**os.environ, "PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r"[:-] (\S+\.md)$", navigation, re.MULTILINE))

    # `docs/site_hooks.py` makes a page of the changelog.
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    # `design/index.md` has the others of its folder.
    assert listed - {"changelog.md"} == {page for page in pages if not page.startswith("design/") or page == "design/index.md"}
