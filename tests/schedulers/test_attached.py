"""Where packages are built: here, or on a node of the site's scheduler."""

from __future__ import annotations

import re

import pytest

from hidl_cli.errors import MissingPrecondition, SubmitRefused
from hidl_cli.inputs.overlay import list_all
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.schedulers.build_allocation import build_job
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from tests.stack.spack.conftest import site

BUILD = {"build_on": "allocation"}


def command(machine: Site, job: AllocationOptions) -> tuple[str, ...]:
    """The prefix of the build command outside an allocation; its job has a name of its own."""
    found = build_job(machine, {}, job)
    assert found is not None
    name = found.cancel[-1]
    assert re.fullmatch(r"hidl-build-[0-9a-f]{8}", name)
    return tuple(word.replace(name, "hidl-build") for word in found.command)


def test_on_the_login_node_no_job_is_submitted() -> None:
    assert build_job(site(), {}, AllocationOptions()) is None


def test_every_job_has_a_name_of_its_own_by_which_it_is_cancelled() -> None:
    jobs = [build_job(site(spack=BUILD), {}, AllocationOptions()) for _ in range(2)]
    names = {job.cancel[-1] for job in jobs if job}
    assert len(names) == 2
    assert all(f"--job-name={job.cancel[-1]}" in job.command for job in jobs if job)


def test_slurm_gives_a_whole_node_with_what_the_site_demands() -> None:
    node = {"arch": "x86_64", "gpus": 0, "cores": 48, "threads_per_core": 2}
    machine = site(spack=BUILD, policies={"account": "required"}, node_types={"node": node})
    with pytest.raises(SubmitRefused, match="requires --account"):
        build_job(machine, {}, AllocationOptions())
    words = command(machine, AllocationOptions(account="abc"))
    assert words[:2] == ("srun", "--ntasks=1")
    assert set(words[2:]) == {
        "--job-name=hidl-build",
        "--partition=normal",
        "--time=12:00:00",
        "--account=abc",
        "--nodes=1",
        "--cpus-per-task=48",
        "--threads-per-core=1",
    }


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ("lsf", "bsub -I -nnodes 1 -W 26:30 -q normal -J hidl-build"),
        ("flux", "flux run --job-name=hidl-build --queue=normal --time-limit=95400s --nodes=1"),
    ],
)
def test_times_are_in_the_form_of_the_scheduler(scheduler: str, words: str) -> None:
    machine = site(spack=BUILD, scheduler=scheduler, policies={"default_time": "1-02:30:00"})
    assert command(machine, AllocationOptions()) == tuple(words.split())


@pytest.mark.parametrize(
    ("policy", "longest", "asked", "requested"),
    [
        ("00:05:00", "08:00:00", None, "08:00:00"),
        ("00:05:00", "48:00:00", None, "12:00:00"),
        ("1-00:00:00", "48:00:00", None, "24:00:00"),
        ("00:05:00", None, None, "00:05:00"),
        (None, None, None, "01:00:00"),
        ("00:05:00", "48:00:00", 1800.0, "00:30:00"),
    ],
)
def test_a_build_takes_the_time_that_the_partition_allows_unless_the_user_requests_one(
    policy: str | None, longest: str | None, asked: float | None, requested: str
) -> None:
    partitions = {"normal": {"node_type": "node", "max_wall": longest}}
    machine = site(spack=BUILD, policies={"default_time": policy}, partitions=partitions)
    assert f"--time={requested}" in command(machine, AllocationOptions(time=asked))


@pytest.mark.parametrize("name", [entry.name for entry in list_all("site")])
def test_builds_at_every_site_have_all_cores_of_a_node_and_an_account(name: str) -> None:
    shipped = load_site(name)
    machine = shipped.model_copy(update={"spack": shipped.spack.model_copy(update={"build_on": "allocation"})})
    partition = next((key for key, each in shipped.partitions.items() if each.min_nodes <= 1), None)
    given = AllocationOptions(
        partition=partition, account="abc", qos="normal" if shipped.scheduler == "slurm" else None
    )
    policies = shipped.policies
    asked = AllocationOptions(
        **{key: value for key, value in vars(given).items() if getattr(policies, key, "") != "never"}
    )
    try:
        words = command(machine, asked)
    except MissingPrecondition:
        assert shipped.scheduler not in ("slurm", "lsf", "flux")
        return
    if policies.account != "never":
        assert any("abc" in word for word in words)
    cores = shipped.node_type(partition).cores
    if shipped.scheduler == "slurm" and policies.cpus == "cpus-per-task" and cores is not None:
        assert f"--cpus-per-task={cores}" in words


def test_inside_an_allocation_no_other_is_asked_for() -> None:
    assert build_job(site(spack=BUILD), {"SLURM_JOB_ID": "1"}, AllocationOptions()) is None


def test_a_scheduler_that_gives_no_nodes_is_reported() -> None:
    with pytest.raises(MissingPrecondition, match="its scheduler cannot run commands in an allocation"):
        build_job(site(spack=BUILD, scheduler="local"), {}, AllocationOptions())
