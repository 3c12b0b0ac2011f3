"""The page on describing a site: its examples are in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import at_path
from hidl_cli.site.checks import RULES

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["workstation", "cluster"])
def test_the_example_of_a_site_is_in_order(config: Path, tmp_path: Path, name: str) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "describe-a-site.md").read_text()
    (example,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if f"name: {name}\n" in block)
    file = tmp_path / f"{name}.yaml"
    file.write_text(example)

    assert examine(RULES, at_path("site", file)).problems == ()
