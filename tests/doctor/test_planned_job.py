"""What a job on an installation would be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.doctor.examine import plan_job, uses_device_buffers
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from tests.doctor.machines import context, host, installed, local, slurm

PREFIX = Path("/stacks/mpi/1")
GDR = {"gdr": {"family": "mvapich2-gdr", "prefix": "/opt/gdr", "tuning": {"MV2_USE_CUDA": 1}}}


def test_a_job_of_hidls_own_choice_takes_the_stacks_library_and_the_first_launcher_that_fits() -> None:
    job = plan_job(context(host(), installation=installed(PREFIX)))
    assert (job.library and job.library.family, job.program) == ("mpich", "/stacks/mpi/1/bin/mpiexec")


def test_or_the_sites_library_with_its_tuning() -> None:
    site = slurm(mpi=GDR, default_mpi="gdr", policies={"environment": {"A": "1"}})
    job = plan_job(context(host(), site, installed(PREFIX, "mvapich2")))
    assert (job.launcher, job.configured) == ("srun", {"A": "1", "MV2_USE_CUDA": "1"})


def test_without_a_stack_only_the_environment_is_known() -> None:
    job = plan_job(context(host(A="1"), local(policies={"environment": {"B": "2"}})))
    assert (job.library, job.program, job.environment) == (None, None, {"A": "1", "B": "2"})


def test_what_hidl_gives_comes_before_what_the_shell_carries() -> None:
    job = plan_job(context(host(A="shell", PYTHONPATH="/lib"), local(policies={"environment": {"A": "site"}})))
    assert (job.environment, job.inherited) == ({"A": "site"}, {})


@pytest.mark.parametrize(
    ("site", "inherits_environment"),
    [
        (slurm(), True),
        (slurm(policies={"export": "none"}), False),
        (slurm(mpi={"gdr": GDR["gdr"] | {"launchers": ["mpirun_rsh"]}}, default_mpi="gdr"), False),
        (
            slurm(
                mpi={
                    "gdr": GDR["gdr"]
                    | {"launchers": ["mpirun_rsh"], "launcher_arguments": {"mpirun_rsh": ["-export"]}}
                },
                default_mpi="gdr",
            ),
            True,
        ),
    ],
    ids=["sbatch passes it on", "--export=NONE", "mpirun_rsh", "mpirun_rsh -export"],
)  # fmt: skip
def test_does_the_shells_environment_reach_the_ranks(site: object, inherits_environment: bool) -> None:
    assert plan_job(context(host(), site, installed(PREFIX, "mvapich2"))).inherits_environment == inherits_environment  # type: ignore[arg-type]


def test_a_plan_says_all_of_it(config: Path) -> None:
    plan = prepare(RunRequest("mpi-sanity", site="local", ranks_per_node=2, hypothetical=True))
    job = plan_job(context(host(OMP_NUM_THREADS="9", A="1"), plan=plan))
    assert (job.planned, job.program, job.inherited) == (True, plan.steps[0].launch.argv[0], {"A": "1"})
    assert job.configured["OMP_NUM_THREADS"] != "9"


@pytest.mark.parametrize(
    ("workload", "assignments", "expected"),
    [
        ("omb-allreduce", ["buffer=cupy"], True),
        ("osu-latency", ["places=D-H"], True),
        ("kmeans", [], False),
        ("kmeans", ["gpu_buffers=direct"], True),
        ("dask-transpose", ["protocol=mpi"], True),
        ("dask-transpose", ["protocol=tcp"], False),
    ],
)
def test_device_buffers_of_runs_on_gpus(config: Path, workload: str, assignments: list[str], expected: bool) -> None:
    file = config / "stacks" / "with-cupy.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("{name: with-cupy, title: CuPy, extends: mpi4dask, mpi: mpich, packages: {cupy-cuda12x: ''}}")
    request = RunRequest(workload, site="perlmutter", account="m0", stack="with-cupy", hypothetical=True)
    assert uses_device_buffers(prepare(replace(request, nodes=2, parameters=assignments))) == expected


@pytest.mark.parametrize(
    ("workload", "assignments"),
    [("osu-allreduce", []), ("omb-allreduce", ["buffer=numpy"]), ("dask-transpose", ["protocol=mpi"])],
)
def test_runs_on_processors_have_no_device_buffers(config: Path, workload: str, assignments: list[str]) -> None:
    request = RunRequest(workload, site="local", ranks_per_node=4, parameters=assignments, hypothetical=True)
    assert not uses_device_buffers(prepare(replace(request, device="cpu")))
