"""Batch scripts as people publish them: each directive is in the job's header, or is reported as not carried over."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hidl_cli.plan.batch_script import read_batch_script
from tests.conftest import Hidl
from tests.waiting import patience

#: The site, the script, what must be in the header, and what must be reported.
SCRIPTS: dict[str, tuple[str, str, list[str], list[str]]] = {
    "one task": (
        "test-cluster",
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --time=00:05:00\nsrun hostname\n",
        ["--nodes=2", "--ntasks-per-node=1", "--time=00:05:00"],
        [],
    ),
    "short options in one line": (
        "test-cluster",
        "#!/bin/bash -l\n#SBATCH -N2 -n 4 -c 2 -t 10 -J name -o out.%j # a comment\nsrun ./a\n",
        ["--nodes=2", "-n 4", "-c 2", "--time=00:10:00"],
        ["-J name", "-o out.%j"],
    ),
    "array of GPU jobs": (
        "test-cluster",
        "#!/bin/bash\n#SBATCH --array=0-5%6\n#SBATCH --gres=gpu:1\n#SBATCH --mem=16G\n##SBATCH --mem=1G\n"
        "#SBATCH --mail-type=END,FAIL\n#SBATCH --mail-user=someone@example.org\n#SBATCH --out=a_%a --err=e_%a\n./a\n",
        ["--gres=gpu:1", "--mem=16G", "--mail-type=END,FAIL", "--mail-user=someone@example.org"],
        ["--array=0-5%6", "--out=a_%a", "--err=e_%a"],
    ),
    "unknown partition and signal": (
        "test-cluster",
        "#!/bin/sh\n\n# comment\n#SBATCH --partition=gpu\n#SBATCH --signal=B:USR1@60\n#SBATCH --exclusive --requeue\n"
        "#SBATCH --export=NONE\nset -e\n#SBATCH --nodes=9\nsrun ./a\n",
        ["--partition=gpu", "--exclusive", "--requeue"],
        ["--signal=B:USR1@60", "--export=NONE"],
    ),
    "sockets": (
        "test-cluster",
        "#!/bin/bash\n#SBATCH --ntasks=76\n#SBATCH --ntasks-per-socket=38 --hint=nomultithread\n#SBATCH more\n./a\n",
        ["--ntasks=76", "--ntasks-per-socket=38", "--hint=nomultithread"],
        ["more"],
    ),
    "quotes": (
        "test-cluster",
        "#!/bin/bash\n#SBATCH --comment=\"two words\" --licenses 'a:1, b'\n./a\n",
        ["--comment='two words'", "--licenses 'a:1, b'"],
        [],
    ),
    "options that would end or move hidl's own script": (
        "test-cluster",
        "#!/bin/bash\n#SBATCH --signal=RB:USR1@60 --wait-all-nodes=1 --export-file=a -HW -s\n./a\n",
        ["--wait-all-nodes=1", "-H", "-s"],
        ["--signal=RB:USR1@60", "--export-file=a", "-W"],
    ),
    "a range of nodes": (
        "test-cluster",
        "#!/bin/bash\n#SBATCH --nodes=2-4\n./a\n",
        ["--nodes=2-4"],
        [],
    ),
    "PBS without spaces": (
        "polaris",
        "\n#PBS -lselect=2:ncpus=8 -lwalltime=00:05:00 -qdebug -Aproj -oout.txt -koed\nmpiexec ./a\n",
        ["-l select=2:ncpus=8", "-A proj", "-q debug", "-l walltime=00:05:00"],
        ["-o out.txt", "-k oed"],
    ),
    "PBS chunks of several kinds": (
        "polaris",
        "#!/bin/bash\n#PBS -l nodes=2:ppn=4+1:ppn=2 -A proj -q debug\n#PBS -l nodes=a+b\nmpiexec ./a\n",
        ["-l nodes=2:ppn=4+1:ppn=2", "-l nodes=a+b"],
        [],
    ),
    "one torchrun per node": (
        "leonardo",
        "#!/bin/bash\n#SBATCH --partition=boost_usr_prod --account=proj --time=10:00 --nodes=2 --ntasks-per-node=1\n"
        "#SBATCH --gpus-per-node=4 --cpus-per-task=32 --output=%x_%j.out\nsrun torchrun a.py\n",
        ["--account=proj", "--nodes=2", "--gpus-per-node=4", "--cpus-per-task=32", "--time=00:10:00"],
        ["--output=%x_%j.out"],
    ),
    "PBS chunks": (
        "polaris",
        "#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=8,place=scatter\n#PBS -l walltime=00:05:00\n#PBS -A proj\n"
        "#PBS -q debug\n#PBS -l filesystems=home:eagle\n#PBS -N name -j oe\n#PBS -W group_list=a\nmpiexec ./a\n",
        [
            "-l select=2:ncpus=8:mpiprocs=8",
            "-l place=scatter",
            "-l filesystems=home:eagle",
            "-A proj",
            "-W group_list=a",
        ],
        ["-N name", "-j oe"],
    ),
    "PBS without an interpreter": (
        "polaris",
        "#PBS -S /bin/bash\n#PBS -l walltime=00:01:00,nodes=1:ppn=4\n#PBS -V\n#PBS -A proj\nmpirun ./a\n",
        ["-l nodes=1:ppn=4", "-A proj"],
        ["-S /bin/bash", "-V"],
    ),
    "LSF": (
        "lassen",
        "#!/bin/bash\n#BSUB -nnodes 2\n#BSUB -W 0:10\n#BSUB -G group\n#BSUB -J name -o out.%J\n#BSUB -q pbatch\n"
        "#BSUB -alloc_flags smt4\njsrun -n 2 ./a\n",
        ["-nnodes 2", "-W 0:10", "-G group", "-q pbatch", "-alloc_flags smt4"],
        ["-J name", "-o out.%J"],
    ),
    "Slurm's script on another scheduler": (
        "polaris",
        "#!/bin/bash\n#SBATCH --nodes=2 --time=5 --account=proj --mem=64G\n./a\n",
        ["select=2", "-A proj"],
        ["--mem=64G"],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_lost_silently(hidl: Hidl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    site, script, carried, reported = SCRIPTS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(script)
    done = hidl("run", "job.sh", "--site", site, "--dry-run", "--no-check")
    assert done.returncode == 0, done.stderr
    header = "\n".join(line for line in done.stdout.splitlines() if re.match("#(SBATCH|PBS|BSUB| flux:)", line))
    assert [each for each in carried if each not in header] == []
    said = " ".join(done.stderr.split())
    assert [each for each in reported if f"not carried over: {each}:" not in said] == []
    assert "--nodes=9" not in header
    assert 'cd -- "$2" && shift 2 && exec "$@"' in done.stdout


def test_options_of_the_command_line_precede_those_of_the_script(
    hidl: Hidl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2 --time=5\nsrun ./a\n")
    line = ["run", "--site", "test-cluster", "--nodes", "1", "--time", "7", "--dry-run", "--no-check"]
    done = hidl(*line, "--", "./job.sh", "an argument")
    assert done.returncode == 0, done.stderr
    assert re.findall("--nodes=(.*)|--time=(.*)", done.stdout)[:2] == [("", "00:07:00"), ("1", "")]
    assert f"/bin/bash {tmp_path}/job.sh 'an argument'" in done.stdout


def test_a_study_of_a_batch_script_is_refused(hidl: Hidl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun ./a\n")
    done = hidl("run", "job.sh", "--site", "test-cluster", "--scale", "1,2", "--dry-run")
    assert done.returncode == 2
    assert "a batch script runs once" in done.stderr


@pytest.mark.parametrize(
    "text", ["#!/bin/bash\necho a\n", "echo a\n#SBATCH --nodes=2\n", "#!/bin/bash\n##SBATCH -N2\n"]
)
def test_other_scripts_are_no_batch_scripts(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.sh").write_text(text)
    assert read_batch_script(["bash", "job.sh"], tmp_path) is None


@pytest.mark.parametrize("line", ["srun --cpu-bind=none python train.py", "mpirun -n 2 ./a", "flux run -n 2 ./a"])
def test_a_script_without_directives_that_starts_ranks_runs_once(
    hidl: Hidl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(f"# as found\nexport MASTER_ADDR=$(hostname)i\n{line}\n")
    for words in (["job.sh"], ["--", "bash", "job.sh"]):
        done = hidl("run", "--site", "test-cluster", "--nodes", "2", "--dry-run", "--no-check", *words)
        assert done.returncode == 0, done.stderr
        assert "#SBATCH --nodes=2\n" in done.stdout
        assert "timed launch 2 bash -c" in done.stdout
        assert f"bash {tmp_path}/job.sh\n" in done.stdout
        assert "srun --nodes" not in done.stdout


def dry_run(hidl: Hidl, tmp_path: Path, script: str, *words: str, site: str = "test-cluster") -> tuple[list[str], str]:
    """Return the header of the job of a batch script, and the errors."""
    (tmp_path / "job.sh").write_text(script)
    done = hidl("run", "--site", site, "--dry-run", "--no-check", *words, "--", str(tmp_path / "job.sh"))
    return [line for line in done.stdout.splitlines() if re.match("#(SBATCH|PBS) ", line)], done.stderr


def test_settings_of_the_command_line_come_after_those_of_the_script(hidl: Hidl, tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --begin=now --mem=1G --partition=elsewhere\nsrun ./a\n"
    words = ["--hold", "--begin", "2030-01-31T18:05", "--comment", "two words", "--scheduler-option=--switches=1"]
    header, errors = dry_run(hidl, tmp_path, script, *words, "--partition", "debug")
    begin, *others = ["--hold", "--begin=2030-01-31T18:05:00", '--comment="two words"', "--switches=1"]
    assert {f"#SBATCH {line}" for line in (begin, *others)} <= set(header), errors
    assert header.index("#SBATCH --begin=2030-01-31T18:05:00") > header.index("#SBATCH --begin=now")
    assert "elsewhere" not in "".join(header)
    assert "#SBATCH --partition=debug" in header


def test_nodes_of_the_command_line_replace_those_of_pbs(hidl: Hidl, tmp_path: Path) -> None:
    script = "#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=8 -A proj -q debug -l walltime=5:00\nmpiexec ./a\n"
    header, errors = dry_run(hidl, tmp_path, script, "--nodes", "1", site="polaris")
    assert [line for line in header if "select" in line] == ["#PBS -l select=1:ncpus=8:mpiprocs=8"], errors
    header, errors = dry_run(
        hidl, tmp_path, script.replace("-l select=2:ncpus=8:mpiprocs=8 ", ""), "--nodes", "2", site="polaris"
    )
    assert [line[:17] for line in header if "select" in line] == ["#PBS -l select=2:"], errors


def test_an_account_of_the_command_line_replaces_that_of_lsf(hidl: Hidl, tmp_path: Path) -> None:
    script = "#!/bin/bash\n#BSUB -G old -P project\njsrun ./a\n"
    (tmp_path / "job.sh").write_text(script)
    words = ["--site", "lassen", "--account", "new", "--dry-run", "--no-check", "--", str(tmp_path / "job.sh")]
    done = hidl("run", *words)
    assert re.findall("^#BSUB (-[GP] .*)", done.stdout, re.MULTILINE) == ["-G new", "-P project"], done.stderr


def test_several_jobs_of_a_batch_script_request_the_signal(hidl: Hidl, tmp_path: Path) -> None:
    header, errors = dry_run(hidl, tmp_path, "#!/bin/bash\n#SBATCH --time=60\nsrun ./a\n", "--until-done")
    assert {"#SBATCH --signal=B:USR1@360", "#SBATCH --requeue"} <= set(header), errors


@pytest.mark.parametrize(
    "words",
    [["--mem", "1G"], ["--gpus", "1"], ["--device", "gpu"], ["--threads", "2"], ["--profile"], ["--stack", "mpi"]],
)
def test_an_option_that_would_have_no_effect_is_rejected(hidl: Hidl, tmp_path: Path, words: list[str]) -> None:
    header, errors = dry_run(hidl, tmp_path, "#!/bin/bash\n#SBATCH --nodes=1\nsrun ./a\n", *words)
    assert (header, f"{words[0]} does not apply" in errors) == ([], True)


def test_components_are_rejected(hidl: Hidl, tmp_path: Path) -> None:
    header, errors = dry_run(hidl, tmp_path, "#!/bin/bash\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\nsrun ./a\n")
    assert (header, "several components (hetjob)" in errors) == ([], True)


def test_comments_in_another_encoding(hidl: Hidl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_bytes("#!/bin/bash\n# für\n#SBATCH --nodes=2\nsrun ./a\n".encode("latin-1"))
    done = hidl("run", "job.sh", "--site", "test-cluster", "--dry-run", "--no-check")
    assert "#SBATCH --nodes=2" in done.stdout, done.stderr


@pytest.mark.real
def test_a_batch_script_reads_the_standard_input(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=1\ncat\necho end\n")
    for given, printed in (("two\nlines\n", "two\nlines\nend\n"), ("", "end\n")):
        done = subprocess.run(
            hidl.command("run", "--site", "local", "--no-check", "--", str(tmp_path / "job.sh")),
            env=hidl.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (max(hidl.runs.iterdir()) / "stdout.log").read_text() == printed


@pytest.mark.real
def test_a_failed_batch_script_is_not_blamed_on_a_stack(hidl: Hidl, tmp_path: Path) -> None:
    """It uses none, and none is installed."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=1\nexit 3\n")
    done = hidl("run", "--site", "local", "--no-check", "--", str(tmp_path / "job.sh"))
    assert done.returncode == 8
    assert "status 3" in done.stderr
    assert "installation" not in done.stderr


def test_a_metric_of_one_rank_is_rejected(hidl: Hidl, tmp_path: Path) -> None:
    words = ["--metric", "speed[ranks=0]=speed ([0-9]+)"]
    header, errors = dry_run(hidl, tmp_path, "#!/bin/bash\n#SBATCH --nodes=1\nsrun ./a\n", *words)
    assert (header, "--metric cannot select ranks" in errors) == ([], True)
