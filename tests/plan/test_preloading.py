"""libmpi.so is preloaded from where it is; where it is nowhere, the job ends before anything starts."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.launch.launchers.contract import Launch
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library
from hidl_cli.plan.job_script import values_of
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.templates import render_script
from tests.plan.test_job_script import VALUES

OPTIONS = ["LD_PRELOAD", "OMPI_LD_PRELOAD_PREPEND"]


@pytest.fixture
def library() -> Path:
    """A shared library that changes nothing where it is preloaded."""
    found = next(Path("/").glob("lib*/**/libm.so.6"), None)
    assert found is not None
    return found


def without_mpi(directory: Path) -> Path:
    """Fill a directory with the system's programs, but for an MPI library's, and return it."""
    directory.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith("mpi"):
            (directory / program.name).symlink_to(program)
    return directory


def ended(
    directory: Path, prefix: Path | None, *, names: list[str] = OPTIONS, path: str | None = None, activate: str = ""
) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    """Run a job script whose only step tells what is preloaded, and read its status."""
    (directory / "activate").write_text(activate)
    tell = "for name in LD_PRELOAD OMPI_LD_PRELOAD_PREPEND; do echo $name=${!name-}; done; touch started"
    step = {
        "title": "it",
        "placement": Placement(1, 1, 1, 1, bind=True),
        "launch": Launch(("bash", "-c", tell)),
        "preflight": None,
        "copies": 0,
        "parser": None,
        "patterns": (),
        "timed": False,
        "unbound": None,
    }
    library = Library("it", "mvapich2-gdr", "2.3.3", prefix=None if prefix is None else str(prefix))
    values = {
        "prefix": "/stack",
        "own_programs": "/stack/bin",
        "mpi_has_programs": True,
        "run": "r",
        "title": "t",
        "activate": str(directory / "activate"),
        "steps": [step],
    }
    script = directory / "job.sh"
    script.write_text(render_script("job.sh.j2", VALUES | values | {"mpi": library, "preloaded_by": names}))
    (directory / "plan.json").touch()
    environment = {"PATH": str(without_mpi(directory / "programs"))}
    environment |= {} if path is None else {"LD_LIBRARY_PATH": path}
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False, env=environment)
    return done, json.loads((directory / "status.json").read_text())


@pytest.mark.parametrize("names", [OPTIONS, OPTIONS[:1], OPTIONS[1:]])
@pytest.mark.parametrize("place", ["lib", "lib64"])
def test_it_is_found_below_the_prefix(tmp_path: Path, library: Path, place: str, names: list[str]) -> None:
    prefix = tmp_path / "a prefix"
    (prefix / place).mkdir(parents=True)
    shutil.copy(library, prefix / place / "libmpi.so")

    done, status = ended(tmp_path, prefix, names=names)
    expected = {name: str(prefix / place / "libmpi.so") if name in names else "" for name in OPTIONS}
    assert dict(line.split("=") for line in done.stdout.splitlines() if "PRELOAD" in line) == expected
    assert (status["state"], done.returncode) == ("COMPLETED", 0)


def test_a_text_for_linkers_is_passed_over(tmp_path: Path, library: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libmpi.so").write_text("INPUT(libmpi.so.12)\n")
    shutil.copy(library, tmp_path / "lib" / "libmpi.so.12")

    done, _ = ended(tmp_path, tmp_path)
    assert f"LD_PRELOAD={tmp_path}/lib/libmpi.so.12\n" in done.stdout


def test_without_a_prefix_it_is_where_the_modules_put_it_and_not_the_stack(tmp_path: Path, library: Path) -> None:
    for name in ("module", "stack"):
        (tmp_path / name).mkdir()
        shutil.copy(library, tmp_path / name / "libmpi.so")

    activate = f"export LD_LIBRARY_PATH={tmp_path}/stack:$LD_LIBRARY_PATH\n"
    done, _ = ended(tmp_path, None, path=f":/nowhere:{tmp_path}/module", activate=activate)
    assert f"LD_PRELOAD={tmp_path}/module/libmpi.so\n" in done.stdout


@pytest.mark.parametrize(
    ("below", "path", "searched"),
    [
        ("prefix", None, "{0}/prefix/lib64 {0}/prefix/lib"),
        (None, "/nowhere:/void", "/nowhere /void"),
        (None, None, "LD_LIBRARY_PATH (empty)"),
    ],
)
def test_where_it_is_nowhere_nothing_is_started(
    tmp_path: Path, below: str | None, path: str | None, searched: str
) -> None:
    done, status = ended(tmp_path, None if below is None else tmp_path / below, path=path, activate="touch started\n")

    place = searched.format(tmp_path)
    assert done.stderr == f"hidl: no libmpi.so to be preloaded into the ranks in: {place}\n"
    assert (done.returncode, status["state"], status["exit_status"]) == (1, "FAILED", 1)
    assert not (tmp_path / "started").exists()


def test_a_run_on_an_old_mvapich2_gdr_preloads_and_one_through_jsrun_in_its_own_way(config: Path) -> None:
    plan = prepare(RunRequest("mpi-sanity", site="frontera-rtx", prefix="/apps", hypothetical=True, mpi="mvapich2-gdr"))
    old = replace(
        plan, mpi=replace(plan.mpi, version="2.3.3"), tuning=tuple(s for s in plan.tuning if "_DL" not in s.name)
    )
    assert values_of(old)["preloaded_by"] == ["LD_PRELOAD"]
    (step,) = old.steps
    through = replace(step, launch=replace(step.launch, preloaded_by="OMPI_LD_PRELOAD_PREPEND"))
    assert values_of(replace(old, steps=(through,)))["preloaded_by"] == OPTIONS
