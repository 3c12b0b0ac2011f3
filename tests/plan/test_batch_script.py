"""Batch scripts as people publish them: each directive is in the job's header, or is reported as not carried over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hidl_cli.plan.batch_script import read_batch_script
from tests.conftest import Hidl

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
        "#!/bin/bash\n#SBATCH --ntasks=76\n#SBATCH --ntasks-per-socket=38 --hint=nomultithread\n#SBATCH hetjob\n./a\n",
        ["--ntasks=76", "--ntasks-per-socket=38", "--hint=nomultithread"],
        ["hetjob"],
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
    assert 'bash -c \'cd -- "$1" && shift && exec "$@"\'' in done.stdout


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
