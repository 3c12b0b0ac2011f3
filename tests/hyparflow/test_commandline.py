"""The command `hyparflow`, where it needs no framework."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hyparflow.__main__ import run
from hyparflow.planning.costs import estimated
from hyparflow.simulate.library import dump

from tests.hyparflow.graphs import chain


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "made.json").write_text(dump(chain(8), estimated(chain(8)), "by hand"))
    return str(tmp_path / "made.json")


def test_simulate_prints_one_row_per_number_of_nodes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["simulate", model, "--partitions", "2", "--nodes", "1,4", "--json"])
    estimates = json.loads(capsys.readouterr().out)["estimates"]
    assert (code, [one["nodes"] for one in estimates]) == (0, [1, 4])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "model.keras", "--partitions", "2"], "there is no file model.keras"),
        (["plan", "model", "--partitions", "2"], "neither a .keras file nor module:function"),
        (["plan", "nowhere:build", "--partitions", "2"], "there is no module nowhere"),
        (["plan", "json:build", "--partitions", "2"], "json has no function build"),
        (["simulate", "nothing", "--partitions", "2", "--nodes", "4"], "there is no model 'nothing'"),
    ],
)
def test_what_cannot_be_done_ends_with_three_and_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (run(arguments), words in capsys.readouterr().err) == (3, True)


def test_a_file_that_keras_did_not_save_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.keras").write_text("no model")

    code = run(["plan", str(tmp_path / "text.keras"), "--partitions", "2"])

    assert (code, "is not a model that Keras saved" in capsys.readouterr().err) == (3, True)


def test_every_finding_is_a_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(
        [
            "simulate",
            model,
            "--partitions",
            "2",
            "--nodes",
            "1",
            "--schedule",
            "gems",
            "--chunks",
            "2",
            "--micro-batches",
            "3",
        ]
    )
    assert capsys.readouterr().err.count("hyparflow: ") == 2


@pytest.mark.parametrize("size", ["12Q", "many"])
def test_a_wrong_command_line_ends_with_two(size: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["plan", "model.keras", "--partitions", "2", "--memory-limit", size])
    assert ended.value.code == 2
