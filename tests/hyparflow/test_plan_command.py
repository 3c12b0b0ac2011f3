"""`hyparflow plan` of a file that Keras saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest


@pytest.fixture(scope="module")
def saved(ask: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with skips, inputs and outputs enough."""
    path = str(tmp_path_factory.mktemp("saved") / "model.keras")
    ask("saved", model="tangled", path=path)
    return path


@pytest.mark.deep
def test_it_prints_tables_and_the_timeline_of_every_partition(ask: Callable[..., Any], saved: str) -> None:
    said = ask("command", words=["plan", saved, "--partitions", "4", "--batch-size", "32"])

    lines = said["stdout"].splitlines()
    assert (said["status"], lines[0].startswith("tangled: 4 partitions x 1 replicas")) == (0, True)
    assert ("Stages (a micro-batch)" in said["stdout"], "Partitions (a step)" in said["stdout"]) == (True, True)
    assert [line[:2] for line in lines[-4:]] == ["0 ", "1 ", "2 ", "3 "]
    assert all(line.endswith("%") for line in lines[-4:])


@pytest.mark.deep
def test_with_json_it_prints_the_plan_alone(ask: Callable[..., Any], saved: str) -> None:
    said = ask("command", words=["plan", saved, "--partitions", "4", "--batch-size", "32", "--json"])

    assert json.loads(said["stdout"])["partitions"] == 4


def test_more_partitions_than_nodes_are_refused(ask: Callable[..., Any], saved: str) -> None:
    said = ask("command", words=["plan", saved, "--partitions", "400"])

    assert (said["status"], "too few for 400 partitions" in said["stderr"], said["stdout"]) == (3, True, "")


def test_what_keras_cannot_load_is_refused_with_its_reason(ask: Callable[..., Any], tmp_path: Path) -> None:
    with ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("notes.txt", "no model")

    said = ask("command", words=["plan", str(tmp_path / "model.keras"), "--partitions", "2"])

    assert (said["status"], "config.json" in said["stderr"], said["stderr"].count("\n")) == (3, True, 1)
