"""Two ranks through real MPI under what people export, close and limit: the number is right, or the error is named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.tiers import deep
from tests.waiting import patience

pytestmark = pytest.mark.real

SUM = """
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
if MPI.COMM_WORLD.rank == 0:
    print(f"total {total}", flush=True)
"""
RUN = ("run", "--ranks-per-node", "2", "--metric", "total=total ([0-9]+)", "--", "python", "sum.py")
HOSTILE = "#!/bin/sh\necho hijacked\nexit 1\n"


@dataclass(frozen=True)
class Case:
    """An environment: lines of bash, then exported variables; ``codes``: the exit codes that hidl may end with."""

    setup: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[int, ...] = (0,)
    command: str = 'exec env "${variables[@]}" "$@"'
    deep: bool = False
    named: bool = True


def _each(*names: str, value: str) -> dict[str, str]:
    return dict.fromkeys(names, value)


#: Variables, of which all of a group are exported together in ``make test``, and each alone at night.
VARIABLES: dict[str, dict[str, dict[str, str]]] = {
    "python": {
        "shadowing modules": {"PYTHONPATH": "{here}/shadow:{repository}"},
        "warnings": {"PYTHONWARNINGS": "error"},
        "no bytecode": {"PYTHONDONTWRITEBYTECODE": "1"},
        "optimized": {"PYTHONOPTIMIZE": "2"},
        "hash seed": {"PYTHONHASHSEED": "7"},
        "inspect": {"PYTHONINSPECT": "1"},
        "safe path": {"PYTHONSAFEPATH": "1"},
        "startup file": {"PYTHONSTARTUP": "/no/such/file"},
        "another venv": {"VIRTUAL_ENV": "/no/such/venv", "CONDA_PREFIX": "/no/conda", "CONDA_DEFAULT_ENV": "x"},
        "unbuffered": {"PYTHONUNBUFFERED": "1"},
        "user base": {"PYTHONUSERBASE": "/no/such", "PYTHONNOUSERSITE": "1"},
    },
    "text": {
        "ascii": {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        "C": {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        "terminal": {"TERM": "dumb", "COLUMNS": "1", "LINES": "1", "FORCE_COLOR": "1"},
    },
    "text 2": {
        "unknown locale": {"LC_ALL": "xx_XX"},
        "no columns": {"COLUMNS": "abc", "TERM": "no-such", "NO_COLOR": "1"},
        "time zone": {"TZ": "No/Where+25"},
    },
    "text 3": {
        "dotless i": {"LC_ALL": "tr_TR.UTF-8"},
        "decimal comma": {"LC_NUMERIC": "de_DE.UTF-8"},
        "zero columns": {"COLUMNS": "0"},
    },
    "loader": {
        "preloaded": {"LD_PRELOAD": "/no/such/library.so"},
        "libraries": {"LD_LIBRARY_PATH": "/no/such:{here}"},
    },
    "shell": {
        "startup files": {"BASH_ENV": "/no/such/file", "ENV": "/no/such/file"},
        "prompts": {"PROMPT_COMMAND": "exit 1", "PS4": "$(touch {here}/hijacked)", "PS1": "x"},
        "words": {"IFS": "a", "OPTIND": "7", "REPLY": "x", "HISTFILE": "/no"},
        "functions": {
            f"BASH_FUNC_{name}%%": "() {{ echo hijacked; return 1; }}"
            for name in (
                "echo",
                "mkdir",
                "command",
                "test",
                "uname",
                "sed",
                "mktemp",
                "tee",
                "awk",
                "paste",
                "stat",
                "set",
            )
        },
    },
    "outer job": {
        "Slurm": {
            "SLURM_JOB_ID": "7",
            "SLURM_JOBID": "7",
            "SLURM_NTASKS": "7",
            "SLURM_PROCID": "3",
            "SLURM_LOCALID": "3",
            "SLURM_NODELIST": "no[1-7]",
            "SLURM_CPU_BIND": "mask_cpu:0x100",
            "SLURM_CPUS_PER_TASK": "9",
            "SLURM_TASKS_PER_NODE": "9",
            "SLURM_MEM_PER_CPU": "1",
            "SBATCH_EXCLUSIVE": "1",
            "SRUN_DEBUG": "3",
        },
        "PMI": {"PMI_RANK": "3", "PMI_SIZE": "7", "PMI_FD": "99", "PMI_PORT": "no:1", "PMI_ID": "3"},
        "PMIx": _each("PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_URI41", value="3"),
        "Open MPI": _each("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE", value="7"),
        "others": _each("FLUX_URI", "FLUX_JOB_ID", "PBS_JOBID", "PBS_NODEFILE", "LSB_JOBID", value="/no/7"),
    },
    "tuning": {
        "threads": {
            "OMP_NUM_THREADS": "97",
            "OMP_PLACES": "{{0}}",
            "KMP_AFFINITY": "verbose",
            "GOMP_CPU_AFFINITY": "0",
        },
        "MPI": {"I_MPI_PIN_DOMAIN": "7", "MV2_ENABLE_AFFINITY": "1", "UCX_LOG_LEVEL": "fatal"},
        "torch": {"MASTER_ADDR": "no.where", "MASTER_PORT": "1", "RANK": "9", "WORLD_SIZE": "9", "LOCAL_RANK": "9"},
    },
}
LAUNCHER_OPTIONS = {
    "HYDRA_LAUNCHER": "none",
    "HYDRA_HOST_FILE": "/no/such",
    "HYDRA_BINDING": "x",
    "MPIEXEC_TIMEOUT": "1",
}
CASES: dict[str, Case] = {
    **{
        name: Case(variables={k: v for each in kinds.values() for k, v in each.items()})
        for name, kinds in VARIABLES.items()
    },
    **{
        f"{group}: {name}": Case(variables=each, deep=True)
        for group, kinds in VARIABLES.items()
        for name, each in kinds.items()
    },
    "umask 0": Case("umask 0", deep=True),
    "umask 077": Case("umask 077", deep=True),
    "umask 777": Case("umask 0777", codes=(0, 1, 4, 8)),
    "32 files": Case("ulimit -n 32", codes=(0, 4, 8)),
    "10 files": Case("ulimit -n 10", codes=(4, 8)),
    "no file": Case("ulimit -f 0", codes=(1, 4)),
    "small files": Case("export PYTHONDONTWRITEBYTECODE=1; ulimit -f 1", codes=(1, 4), deep=True),
    "little memory": Case("ulimit -v 400000", codes=(0, 4, 8)),
    "small stack": Case("ulimit -s 256; ulimit -c 0", deep=True),
    "huge stacks": Case("ulimit -s 99999999999", codes=(4, 8)),
    "no input": Case(command='exec env "${variables[@]}" "$@" <&-'),
    "no output": Case(command='exec env "${variables[@]}" "$@" >&-', codes=(0, 1), deep=True),
    "no errors": Case(command='exec env "${variables[@]}" "$@" 2>&-', codes=(0, 1), deep=True),
    "nothing open": Case(command='exec env "${variables[@]}" "$@" <&- >&- 2>&-', codes=(0, 1)),
    "full output": Case(command='exec env "${variables[@]}" "$@" > /dev/full', codes=(1, 4)),
    "full errors": Case(command='exec env "${variables[@]}" "$@" 2> /dev/full'),
    "closed pipe": Case(command='set -o pipefail; env "${variables[@]}" "$@" | true', codes=(0, 1, 141), named=False),
    "signals are ignored": Case("trap '' HUP INT PIPE TERM"),
    "HOME unset": Case("unset HOME", deep=True),
    "HOME a file": Case(variables={"HOME": "{here}/sum.py"}, deep=True),
    "HOME missing": Case(variables={"HOME": "/no/such/home"}),
    "TMPDIR missing": Case(variables={"TMPDIR": "/no/such/tmp"}),
    "TMPDIR relative": Case("mkdir tmp", variables={"TMPDIR": "tmp"}, deep=True),
    "TMPDIR with spaces": Case("mkdir 'a b'", variables={"TMPDIR": "{here}/a b"}, deep=True),
    "TMPDIR too long": Case("mkdir -p $(printf 'x%.0s' {1..200})", variables={"TMPDIR": "{here}/" + "x" * 200}),
    "a hostile PATH": Case(variables={"PATH": "{here}/hostile:.:{path}"}, codes=(0, 4)),
    "a minimal PATH": Case(variables={"PATH": "/usr/bin:/bin"}),
    "an empty PATH": Case(variables={"PATH": ""}, codes=(0, 4, 6, 8)),
    "one core, nice": Case("taskset -p -c 0 $$ > /dev/null; renice -n 19 $$ > /dev/null", codes=(0, 2, 4, 6)),
    "the directory is deleted": Case("mkdir gone && cd gone && rmdir ../gone", codes=(4, 8)),
    "a directory of many words": Case("mkdir $'a\\n b%41 \\xc3\\xbc' && cp sum.py a* && cd a*"),
    "launcher options": Case(variables=LAUNCHER_OPTIONS, codes=(0, 4, 8)),
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory in which hidl is started."""
    place = tmp_path / "here"
    for each in ("shadow", "hostile"):
        (place / each).mkdir(parents=True)
    (place / "sum.py").write_text(SUM)
    for module in ("json", "typing", "tempfile", "random", "signal", "code"):
        (place / "shadow" / f"{module}.py").write_text("raise SystemExit('hijacked')")
    for program in ("sed", "mpiexec", "python", "paste", "date", "mv", "cut", "dirname", "tee", "awk", "bash"):
        (place / "hostile" / program).write_text(HOSTILE)
        (place / "hostile" / program).chmod(0o755)
    return place


def start(hidl: Hidl, here: Path, case: Case, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
    known = {"here": str(here), "repository": hidl.environment["PYTHONPATH"], "path": hidl.environment["PATH"]}
    variables = [f"{name}={value.format(**known)}" for name, value in case.variables.items()]
    script = f'number=$1; variables=("${{@:2:number}}"); shift $((number + 1))\n{case.setup}\n{case.command}\n'
    line = ["bash", "-c", script, "case", str(len(variables)), *variables, *hidl.command(*arguments)]
    return subprocess.run(
        line,
        cwd=here,
        env=hidl.environment,
        capture_output=True,
        check=False,
        timeout=patience(120),
        stdin=subprocess.DEVNULL,
    )


def total(run: Path) -> float:
    """The number that the program printed, as hidl has read it."""
    (step,) = json.loads((run / "metrics.json").read_text())["steps"]
    found: float = step["metrics"]["total"]["value"]
    return found


def check(case: Case, done: subprocess.CompletedProcess[bytes], runs: Path) -> None:
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode in case.codes, said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    found = list(runs.glob("*/plan.json"))
    if done.returncode == 0:
        assert [total(each.parent) for each in found] == [3.0], said
    elif done.stderr and case.named:
        assert "error:" in said or "error HD" in said, said
    for each in found:
        if (status := each.with_name("status.json")).is_file():
            assert json.loads(status.read_text())["state"] in ("COMPLETED", "FAILED", "REFUSED"), said


@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=pytest.mark.deep) if CASES[name].deep else name for name in CASES]
)
def test_two_ranks_add_right_or_the_error_is_named(hidl_with: Callable[..., Hidl], here: Path, kind: str) -> None:
    hidl = hidl_with("mpi")
    check(CASES[kind], start(hidl, here, CASES[kind], RUN), hidl.runs)
    assert not (here / "hijacked").exists()


#: In ``make test``: sbatch passes the submitter's variables to the job. All other cases run on Slurm at night.
ON_SLURM = ("shell", "outer job", "TMPDIR missing")


@pytest.mark.parametrize("kind", [*ON_SLURM, *(deep(name) for name in CASES if name not in ON_SLURM)])
def test_two_nodes_of_slurm_add_right(on_cluster: Callable[..., Hidl], here: Path, kind: str) -> None:
    hidl = on_cluster("mpi")
    line = ("run", "--site", "test-cluster", "--nodes", "2", "--ranks-per-node", "1", *RUN[3:])
    case = CASES[kind]
    if case.codes != (0,):  # a limit may stop hidl here and not the job there, or a program the job and not hidl
        case = replace(case, codes=(*case.codes, 0, 8))
    check(case, start(hidl, here, case, line), hidl.runs)
    assert not (here / "hijacked").exists()


#: Commands that only look.
LOOKS = (
    ("status",),
    ("results", "list"),
    ("report",),
    ("site", "show", "local"),
    ("doctor",),
    ("run", "--dry-run", "osu-latency", "--ranks-per-node", "2"),
)


@pytest.mark.parametrize("command", [LOOKS[0], *(deep(each) for each in LOOKS[1:])], ids=" ".join)
def test_commands_that_look_end_without_a_traceback(hidl: Hidl, here: Path, command: tuple[str, ...]) -> None:
    for kind, case in ((kind, case) for kind, case in CASES.items() if not case.deep):
        done = start(hidl, here, case, command)
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode in {0, 1, 2, 3, 4, 141}, (kind, said)
        assert "Traceback" not in said, (kind, said)
        assert "Exception ignored" not in said, (kind, said)
