"""The tutorial "laptop" does what it says: every command is run, and what it prints is what stands on the page.

After a change that is meant: HIDL_WRITE_GOLDEN=1 pytest tests/tutorials, and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorials.pages import done, each_command, holds
from tests.tutorials.tutorial import Command

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    return done("laptop", tmp_path_factory.mktemp("laptop"))


@pytest.mark.deep
@each_command("laptop")
def test_on_a_laptop(command: Command, laptop: tuple[Path, list[str]]) -> None:
    holds(command, laptop)
