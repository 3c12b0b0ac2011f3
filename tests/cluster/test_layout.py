"""How a cluster's directory is named to who types."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.cluster.layout import default_directory, option_for


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("directory", "option"),
    [
        (None, ""),
        (Path("/tmp/a b"), "--directory '/tmp/a b'"),
        (Path("/tmp/twins/frontera"), "--directory /tmp/twins/frontera"),
    ],
)
def test_the_option_names_the_cluster(directory: Path | None, option: str) -> None:
    assert option_for(directory or default_directory()) == option


@pytest.mark.usefixtures("config")
def test_a_twin_is_named_by_its_site() -> None:
    assert option_for(default_directory("frontera")) == "--like frontera"
