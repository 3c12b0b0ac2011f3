"""``--matrix mpi.VARIABLE=...``: run-time variables compared with the default in one run, and the winner saved."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.store.store import Store
from tests.conftest import Hidl

pytestmark = pytest.mark.real

VARIABLE = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
# A program that is twice as fast with `ring`, by its own word.
PROGRAM = f"""
import os
rate = 200 if os.environ.get("{VARIABLE}") == "ring" else 100
print("rate", rate * (1 + os.getpid() % 7 / 1000), os.environ.get("{VARIABLE}"))
"""
METRIC = "rate[better=higher,take=first]=rate ([0-9.]+)"


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hidl:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return hidl_with("mpi")


def command(*options: str) -> tuple[str, ...]:
    return "run", "--stack", "mpi", "--no-mpi", "--metric", METRIC, *options, "--", "python", "program.py"


def comparison(*options: str) -> tuple[str, ...]:
    return command("--matrix", f"mpi.{VARIABLE}=ring,recursive_doubling", *options)


def test_the_winner_is_found_and_saved(hidl: Hidl) -> None:
    completed = hidl(*comparison("--repeat", "10", "--until-settled", "--save-tuning"))
    assert completed.returncode == 0, completed.stderr
    assert re.search(rf"mpi\.{VARIABLE}=ring: rate\s+\d+\.\d%\s+higher", completed.stdout)
    shown = hidl("tuning", "explain", VARIABLE).stdout
    assert "site local" in shown
    assert "measured by run" in shown
    script = hidl("run", "omb-allreduce", "--ranks-per-node", "2", "--dry-run").stdout
    assert f"export {VARIABLE}=ring # site local" in script


def test_each_point_gets_its_value_and_the_default_none(hidl: Hidl) -> None:
    document = json.loads(hidl(*comparison("--repeat", "1", "--json")).stdout)
    assert [step["parameters"] for step in document["steps"]] == [
        {f"mpi.{VARIABLE}": value} for value in ("default", "ring", "recursive_doubling")
    ]
    (run,) = hidl.runs.iterdir()
    words = [line.split()[-1] for line in (run / "stdout.log").read_text().splitlines() if line.startswith("rate")]
    assert words == ["None", "ring", "recursive_doubling"]
    assert document["verdict"]["ranking"]["winner"] is None  # a single value says nothing about the noise


def test_the_default_continues_the_series_of_ordinary_runs(hidl: Hidl) -> None:
    hidl(*comparison("--repeat", "1"))
    hidl(*command())
    samples = [each for each in Store(hidl.runs.parent / "results.sqlite").samples() if each.metric == "rate"]
    series = [each.series for each in samples]
    assert len(set(series)) == 3
    assert [each.point[f"mpi.{VARIABLE}"] for each in samples if series.count(each.series) == 1] == [
        "ring",
        "recursive_doubling",
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--matrix", "mpi.MV2_IBA_EAGER_THRESHOLD=1K"), "mpich does not read `MV2_IBA_EAGER_THRESHOLD`"),
        (("--matrix", f"mpi.{VARIABLE}=rings"), "did you mean `ring`"),
        (("--matrix", f"mpi.{VARIABLE}=ring,ring"), "too few different values"),
        (("--matrix", f"mpi.{VARIABLE}=default"), "too few different values"),
        (("--matrix", f"mpi.{VARIABLE}=ring", "max_size=4,8"), "max_size cannot be combined with run-time variables"),
        (("--matrix", f"mpi.{VARIABLE}=ring", "mpi.MPICH_ALLREDUCE_INTRA_ALGORITHM=tree"), "the same variable"),
        (("--matrix", "buffer=numpy,bytearray", "--save-tuning"), "requires variables to compare"),
        (("--matrix", "buffer=numpy,bytearray", "--until-settled"), "--until-settled requires"),
        (("--matrix", f"mpi.{VARIABLE}=ring", "--save-tuning", "--repeat", "2"), "requires 3 repetitions"),
        (("--matrix", f"mpi.{VARIABLE}=ring", "--tune", f"{VARIABLE}=ring"), "is already the default"),
        (("--matrix", f"mpi.{VARIABLE}=ring", "--save-tuning", "--no-wait"), "cannot be combined"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    hidl: Hidl, options: tuple[str, ...], told: str
) -> None:
    completed = hidl("run", "omb-allreduce", "--ranks-per-node", "2", *options)
    assert completed.returncode in (2, 3), completed.stderr
    assert told in completed.stderr
    assert not hidl.runs.exists()


def test_each_round_starts_with_another_point(hidl: Hidl) -> None:
    """A first launch that is always slower, or faster, must not decide."""
    document = json.loads(hidl(*comparison("--repeat", "3", "--json")).stdout)
    first = [document["steps"][index]["parameters"][f"mpi.{VARIABLE}"] for index in (0, 3, 6)]
    assert first == ["default", "ring", "recursive_doubling"]


def test_a_value_of_zero_ends_no_command(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('rate 0')")
    completed = hidl(*comparison("--repeat", "3", "--until-settled"))
    assert completed.returncode == 0, completed.stderr
    assert "no ranking: no metric with a direction has a positive value in every step" in completed.stdout.replace(
        "\n", " "
    )


def test_a_winner_is_saved_later_but_not_without_the_tuning_of_its_run(hidl: Hidl) -> None:
    hidl(*comparison("--repeat", "3"))
    assert "saved" in hidl("tuning", "save").stderr
    (hidl.config / "sites" / "local.yaml").unlink()
    hidl(*comparison("--repeat", "3", "--tune", "MPIR_CVAR_ENABLE_GPU=0"))
    refused = hidl("tuning", "save")
    assert (refused.returncode, "measured with --tune MPIR_CVAR_ENABLE_GPU" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("name: local\r\nextends: local\r\n", 0o644, "its layout does not allow automatic changes"),
        ("{name: local, extends: local}\n", 0o644, "its layout does not allow automatic changes"),
    ],
)
def test_a_file_that_cannot_be_changed_stays(hidl: Hidl, text: str, mode: int, told: str) -> None:
    file = hidl.config / "sites" / "local.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    hidl(*comparison("--repeat", "3"))
    refused = hidl("tuning", "save")
    assert (refused.returncode != 0, told in refused.stderr) == (True, True), refused.stderr
    assert "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM: ring" in refused.stderr
    assert file.read_bytes() == text.encode()


def test_a_saved_value_replaces_the_one_before_and_nothing_else(hidl: Hidl) -> None:
    file = hidl.config / "sites" / "local.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = "# mine\nname: local\nextends: local\ntitle: My machine  # of 2 cores\n"
    file.write_text(kept)
    for _ in range(2):
        hidl(*comparison("--repeat", "3"))
        hidl("tuning", "save")
        file.write_text(file.read_text().replace(": ring", ": tree"))
    text = file.read_text()
    assert text.startswith(kept)
    assert (text.count("measured by run"), text.count(VARIABLE)) == (1, 1)
