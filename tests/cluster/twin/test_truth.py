"""What the how-to says of a twin is what `hidl cluster status` says."""

from __future__ import annotations

import pytest
from hidl_twin.twin import truth
from hidl_twin.twin.of_site import dress_of

from tests.conftest import REPOSITORY


@pytest.mark.parametrize("site", ["frontera", "summit"])
def test_the_how_to_lists_every_statement_of_status(site: str) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "rehearse-a-site.md").read_text(encoding="utf-8")
    dress = dress_of(site, 2)
    for statement in (*truth.true_of(dress), *truth.not_true_of(dress)):
        assert f"- {statement}\n" in page
