"""The pages on launchers and plug-ins say what the registry, and the package that the tests install, hold."""

from __future__ import annotations

import re

from hidl_cli.launchers import LAUNCHERS
from tests.conftest import REPOSITORY
from tests.plugins.packages import TOY

LAUNCHERS_PAGE = REPOSITORY / "docs" / "reference" / "launchers.md"
PLUGINS_PAGE = REPOSITORY / "docs" / "how-to" / "write-a-plug-in.md"


def test_the_table_has_every_launcher_with_its_families() -> None:
    rows = re.findall(r"^\| `(\w+)`[^|]*\| ([^|]+) \|", LAUNCHERS_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = {name: tuple(re.findall(r"`([a-z0-9-]+)`", families)) for name, families in rows if name in LAUNCHERS}
    assert told == {name: LAUNCHERS.get(name).starts for name in LAUNCHERS.built_in}
    of_site = {name for name, families in rows if families.endswith("; of the site")}
    assert of_site == {name for name in LAUNCHERS.built_in if LAUNCHERS.get(name).needs_site_library}


def test_the_page_shows_the_package_that_is_tested() -> None:
    page, module = PLUGINS_PAGE.read_text(encoding="utf-8"), (TOY / "hidl_toy.py").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        for part in re.split(r"\n\n\n", block.strip()):
            assert all(line in module for line in part.splitlines()), part
    toml = re.search(r"```toml\n# pyproject.toml\n(.*?)```", page, re.DOTALL)
    assert toml is not None
    assert toml[1] == (TOY / "pyproject.toml").read_text(encoding="utf-8")
