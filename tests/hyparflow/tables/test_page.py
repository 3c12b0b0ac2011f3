"""The page of what of Keras trains in partitions is true: names are Keras' own, a sample comes out as it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hyparflow.tables import page

pytestmark = pytest.mark.real

#: Of each kind at least one, with messages of whole numbers, random numbers, states, refusals.
SAMPLE = [
    "layers.BatchNormalization", "layers.Dropout", "layers.Embedding", "layers.LSTM", "layers.SpectralNormalization",
    "optimizers.Adam", "losses.CTC", "metrics.AUC", "regularizers.OrthogonalRegularizer", "constraints.MaxNorm",
    "initializers.Orthogonal", "callbacks.EarlyStopping", "callbacks.BackupAndRestore",
]  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[page.Row]:
    return page.read(page.PAGE.read_text())


def test_the_page_lists_every_public_name_of_the_installed_keras(
    rows: list[page.Row], stack_prefix: Callable[[str], Path]
) -> None:
    _, names = page.enumerated(stack_prefix("tensorflow"))

    assert [row.name for row in rows] == names


def test_nothing_is_wrong_and_nine_tenths_are_equal(rows: list[page.Row]) -> None:
    assert [row for row in rows if row.outcome == "wrong"] == []
    assert page.share_equal(rows) >= 0.9


@pytest.mark.deep
def test_a_sample_comes_out_as_the_page_says(
    rows: list[page.Row], stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    said = {row.name: row.outcome for row in rows}

    found = page.run(stack_prefix("tensorflow"), SAMPLE, tmp_path / "rows")

    assert {row.name: row.outcome for row in found} == {name: said[name] for name in SAMPLE}
