"""``hidl run -- PROGRAM``: real programs, from their file to a verdict, without a YAML file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, Hidl

SHOW = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
told = {"words": sys.argv[1:], "directory": os.getcwd(), **{name: os.environ.get(name) for name in names}}
print(json.dumps(told))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a user's, with a space in its name, in which hidl is started."""
    place = tmp_path / "my project"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "show.py").write_text(SHOW)
    return place


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with the mpi stack."""
    return hidl_with("mpi")


def printed(hidl: Hidl) -> list[str]:
    """What the program of the only run printed."""
    (run,) = hidl.runs.iterdir()
    return (run / "stdout.log").read_text().splitlines()


def test_each_rank_gets_the_words_as_typed_in_the_directory_of_the_user(hidl: Hidl, here: Path) -> None:
    typed = ["a b", "$HOME", "x;y", "ünï", "a\nb", "", ":", "%41", "it's", "*", "{x}", "--", "--nodes", "2"]
    done = hidl("run", "--ranks-per-node", "2", "--", "python", "show.py", *typed)
    assert done.returncode == 0, done.stderr
    ranks = sorted((json.loads(line) for line in printed(hidl)), key=lambda rank: rank["RANK"])
    assert ranks == [
        {
            "words": typed,
            "directory": str(here),
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
        }
        for rank in range(2)
    ]


def test_its_run_has_what_every_run_has(hidl: Hidl, here: Path) -> None:
    run = json.loads(hidl("run", "--json", "--", "python", "show.py").stdout)
    assert (run["workload"], run["state"]) == ("show", "COMPLETED")
    assert {"wall_time", "throughput"} <= set(run["steps"][0]["metrics"])
    assert hidl("logs", run["run"]).stdout == "".join(f"{line}\n" for line in printed(hidl))
    assert run["run"] in hidl("status").stdout


def test_a_script_of_a_shell_is_a_program_too(hidl: Hidl, here: Path) -> None:
    (here / "job.sh").write_text('#!/bin/sh\necho rank $RANK of $WORLD_SIZE in $(basename "$PWD")\n')
    (here / "job.sh").chmod(0o755)
    assert hidl("run", "--ranks-per-node", "2", "--no-mpi", "--", "./job.sh").returncode == 0
    assert sorted(printed(hidl)) == ["rank 0 of 2 in my project", "rank 1 of 2 in my project"]


def test_a_c_program_gets_a_scaling_verdict(hidl: Hidl, here: Path, stack_prefix: Callable[[str], Path]) -> None:
    subprocess.run([stack_prefix("mpi") / "bin" / "mpicc", PROGRAMS / "pi.c", "-o", "pi"], check=True)
    study_of(hidl, "./pi", "100000")
    assert [line for line in printed(hidl) if "pi is" in line] == [
        f"pi is 3.141593 on {ranks} ranks" for ranks in (1, 2)
    ] * 3


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("gfortran") is None, reason="no gfortran on this machine")
def test_a_fortran_program_gets_a_scaling_verdict(hidl: Hidl, here: Path, stack_prefix: Callable[[str], Path]) -> None:
    library = stack_prefix("mpi") / "lib"
    subprocess.run(
        ["gfortran", PROGRAMS / "pi.f90", "-o", "pi", f"-L{library}", f"-Wl,-rpath,{library}", "-lmpi"], check=True
    )
    study_of(hidl, "./pi")
    assert {line.split(": ")[-1] for line in printed(hidl)} >= {f"pi is 3.141593 on {ranks} ranks" for ranks in (1, 2)}


@pytest.mark.deep
def test_an_mpi4py_program_gets_a_scaling_verdict(hidl: Hidl, here: Path) -> None:
    study_of(hidl, "python", str(PROGRAMS / "pi_mpi4py.py"), "--intervals", "1000")


@pytest.mark.deep
@pytest.mark.parametrize("backend", ["gloo", "mpi4py"])
def test_a_pytorch_program_gets_a_scaling_verdict(hidl_with: Callable[..., Hidl], here: Path, backend: str) -> None:
    hidl = hidl_with("pytorch")
    program = ("python", str(PROGRAMS / "mnist.py"), "--images=64", "--batch-size=32", f"--backend={backend}")
    study_of(hidl, *program, stack="pytorch", mpi=backend == "mpi4py", repeat=2)
    assert any("Train Epoch: 1" in line for line in printed(hidl))


def study_of(hidl: Hidl, *command: str, stack: str = "mpi", mpi: bool = True, repeat: int = 3) -> None:
    """A study of 1 and 2 ranks by the time of the launch, with a verdict."""
    options = ["--stack", stack, "--scale", "1,2", "--repeat", str(repeat), *([] if mpi else ["--no-mpi"]), "--json"]
    done = hidl("run", *options, "--", *command)
    assert done.returncode in (0, 10, 11), done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"]["verdict"] in ("pass", "fail", "inconclusive")
    study = document["verdict"]["study"]
    assert (study["kind"], study["metric"], len(document["steps"])) == ("strong", "wall_time", 2 * repeat)


@pytest.mark.deep
def test_weak_scaling_is_judged_by_throughput_until_it_is_settled(hidl: Hidl, here: Path) -> None:
    study = ["--scale", "1,2", "--repeat", "5", "--until-settled", "--scaling", "weak", "--target", "0.01", "--json"]
    done = hidl("run", *study, "--", "sleep", "1")
    assert done.returncode in (0, 11), done.stderr
    judged = json.loads(done.stdout)["verdict"]["study"]
    assert (judged["kind"], judged["metric"]) == ("weak", "throughput")
    assert judged["steps"][1]["efficiency"] > 0.5


@pytest.mark.deep
def test_a_matrix_compares_its_arguments(hidl: Hidl, here: Path) -> None:
    done = hidl("run", "--matrix", "seconds=0.1,1.5", "--repeat", "3", "--json", "--", "sleep", "{seconds}")
    assert done.returncode == 0, done.stderr
    ranking = json.loads(done.stdout)["verdict"]["ranking"]
    assert ranking["metric"] == "wall_time"
    assert ranking["best"] == {"seconds": "0.1"}


def test_a_failure_of_the_program_is_the_runs(hidl: Hidl, here: Path) -> None:
    done = hidl("run", "--", "bash", "-c", "echo so it is >&2; exit 3")
    assert done.returncode == 8
    assert "status 3 in step 1 of 1" in done.stderr
    assert "so it is" in done.stderr


def test_a_dry_run_shows_the_script_and_starts_nothing(hidl: Hidl, here: Path) -> None:
    done = hidl("run", "--dry-run", "--site", "frontera", "--nodes", "4", "--", "python", "train.py", "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert "train.py --lr 0.1" in done.stdout
    assert not hidl.runs.exists()


def test_an_estimate_reports_the_cost(hidl: Hidl, here: Path) -> None:
    done = hidl("run", "--estimate", "--site", "frontera", "--nodes", "4", "--time", "1:00:00", "--", "./prog")
    assert done.returncode == 0, done.stderr
    assert "4" in done.stdout


def test_a_program_of_another_mpi_library_is_named_before_it_starts(
    hidl: Hidl, here: Path, stack_prefix: Callable[[str], Path]
) -> None:
    subprocess.run([stack_prefix("openmpi") / "bin" / "mpicc", PROGRAMS / "pi.c", "-o", "pi"], check=True)
    done = hidl("run", "--ranks-per-node", "2", "--", "./pi")
    assert done.returncode == 4
    assert "HD011" in done.stderr
    assert "--stack openmpi" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["show.py"], "hidl run -- python show.py"),
        (["show.py", "--lr", "0.1"], "hidl run -- python show.py --lr 0.1"),
        (["--ranks-per-node", "2", "show.py"], "hidl run --ranks-per-node 2 -- python show.py"),
        (["./show.py", "a b"], "hidl run -- python ./show.py 'a b'"),
    ],
)
def test_a_file_in_the_place_of_a_workload_gets_the_line_to_type(
    hidl: Hidl, here: Path, words: list[str], line: str
) -> None:
    done = hidl("run", *words)
    assert done.returncode == 2
    assert f"next: to run it, use: {line}\n" in done.stderr


def test_a_workload_is_found_in_a_directory_that_cannot_be_read(hidl: Hidl, here: Path) -> None:
    dropped = "-dac_override,-dac_read_search"  # what lets root read it
    become = ["setpriv", "--bounding-set", dropped] if os.geteuid() == 0 else []
    line = [*become, "bash", "-c", 'chmod 0 . && "$@"', "bash", *hidl.command("run", "mpi-sanity", "--dry-run")]
    try:
        done = subprocess.run(line, cwd=here, env=hidl.environment, capture_output=True, text=True, check=False)
    finally:
        here.chmod(0o755)
    assert (done.returncode, "finish COMPLETED 0" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "no program after --"),
        ([], "no workload or program given"),
        (["kmeans", "--", "prog"], "cannot be combined"),
        (["kmeans", "--scaling", "weak"], "require a program after --"),
        (["traim.py"], "unknown workload 'traim.py'"),
    ],
)
def test_a_line_that_means_nothing_is_a_usage_error(hidl: Hidl, here: Path, words: list[str], said: str) -> None:
    done = hidl("run", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr) < 400


def test_a_drafted_workload_runs(hidl: Hidl, here: Path) -> None:
    shutil.copy(PROGRAMS / "pi_mpi4py.py", here / "pi.py")
    drafted = hidl("workload", "new", "pi.py", "--", "--intervals", "1000")
    assert drafted.returncode == 0, drafted.stderr
    assert "running pi.py until it parses its options" in drafted.stderr
    assert drafted.stderr.endswith("next: hidl run pi\n")
    again = hidl("workload", "new", "pi.py")
    assert (again.returncode, "already exists" in again.stderr) == (2, True)
    done = hidl("run", "pi", "--set", "intervals=500", "--ranks-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert printed(hidl) == ["pi is 3.141593 on 2 ranks"]


def test_a_draft_elsewhere_runs_by_its_path(hidl: Hidl, here: Path) -> None:
    assert hidl("workload", "new", "show.py", "--no-run", "--output", "show.yaml", "--", "x y").returncode == 0
    assert hidl("run", "show.yaml").returncode == 0
    assert json.loads(printed(hidl)[0])["words"] == ["x y"]
    assert hidl.json("workload", "new", "show.py", "--output", "-")["name"] == "show"


def test_source_code_gets_the_line_that_compiles_it(hidl: Hidl, here: Path) -> None:
    shutil.copy(PROGRAMS / "pi.c", here)
    for words in (["run", "pi.c"], ["workload", "new", "pi.c"]):
        done = hidl(*words)
        assert done.returncode == 2
        line = "next: compile it first: hidl stack exec mpi -- mpicc -O2 pi.c -o pi, then: hidl run -- ./pi\n"
        assert line in done.stderr
