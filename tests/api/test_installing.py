"""Installations and lists from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import hidl_cli.api as hidl
from hidl_cli.api.software import arrange
from hidl_cli.launch.options import AllocationOptions, InstallOptions
from hidl_cli.site.schema import Site
from tests.conftest import Hidl


@pytest.fixture
def shell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Hidl:
    """hidl on the command line, with the directories of this process."""
    typed: Hidl = request.getfixturevalue("hidl")  # the module has this name here
    for name, value in typed.environment.items():
        if name.startswith("XDG_"):
            monkeypatch.setenv(name, value)
    return typed


@pytest.mark.real
def test_a_stack_is_installed_once_and_listed(shell: Hidl, capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    (installed,) = hidl.install("mpi", progress=lines.append)
    assert (installed.stack, installed.action) == ("mpi", "installed")
    assert lines
    (again,) = hidl.install("mpi")
    assert again.action == "nothing to do"
    assert str(installed.prefix) in installed._repr_html_()
    assert capfd.readouterr() == ("", ""), "nothing is printed"
    (typed,) = shell.json("install", "mpi")["installations"]
    assert {**again.document, "action": again.action} == typed
    assert [each.name for each in hidl.stacks() if each.installations] == ["mpi"]
    assert [(each.name, [dict(one) for one in each.installations]) for each in hidl.stacks()] == [
        (each["name"], each["installations"]) for each in shell.json("stack", "list")["stacks"]
    ]


@pytest.mark.real
def test_an_installation_without_a_lock_or_network_fails_as_on_the_command_line(shell: Hidl, tmp_path: Path) -> None:
    with pytest.raises(hidl.MissingPrecondition) as raised:
        hidl.install("mpi", packages=["no-such-package-of-anyone==1.0"], name="mine", offline=True, locked=True)
    typed = shell("install", "mpi", "--with", "no-such-package-of-anyone==1.0", "--as", "mine", "--offline", "--locked")
    assert typed.returncode == raised.value.exit_code
    assert raised.value.message.splitlines()[0] in typed.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stacks": ["mpj"]}, "unknown stack 'mpj'"),
        ({"stacks": ["mpi"], "packages": ["x"]}, "require a name"),
        ({"stacks": ["mpi"], "sources": {"omb": "x.tgz"}}, "expected NAME=FILE"),
        ({"stacks": ["mpi"], "provider": "pip"}, "unknown provider 'pip'"),
        ({"stacks": ["mpi"], "verify": "there"}, "invalid --verify 'there'"),
    ],
)
def test_misfits_are_usage_errors(options: dict[str, object], message: str, config: Path) -> None:
    stacks = options.pop("stacks")
    assert isinstance(stacks, list)
    with pytest.raises(hidl.UsageError, match=message):
        hidl.install(*stacks, **options)  # type: ignore[arg-type]


def test_options_for_jobs_reach_the_build_job(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config / "sites").mkdir(parents=True)
    (config / "sites" / "ours.yaml").write_text(
        "name: ours\ntitle: ours\nscheduler: slurm\nlaunchers: [srun]\nspack: {detect: true, build_on: allocation}\n"
        "node_types: {node: {cores: 4}}\npartitions: {normal: {node_type: node}}\ndefault_partition: normal\n"
    )
    seen: list[AllocationOptions] = []

    def build_job(site: Site, environ: Mapping[str, str], job: AllocationOptions) -> None:
        seen.append(job)
        raise hidl.SubmitRefused("no job in this test", hint="")

    monkeypatch.setattr("hidl_cli.schedulers.build_allocation.build_job", build_job)
    options = InstallOptions(stacks=["mpi"], site="ours", provider="spack", account="abc", time=60)
    with pytest.raises(hidl.SubmitRefused, match="no job in this test"):
        arrange(options, keep=False, say=print)
    assert [(job.account, job.time_limit) for job in seen] == [("abc", 60)]


@pytest.mark.real
def test_lists_are_those_of_the_command_line(shell: Hidl) -> None:
    assert [site.name for site in hidl.sites()] == [site["name"] for site in shell.json("site", "list")["sites"]]
    assert [each.name for each in hidl.workloads()] == [
        each["name"] for each in shell.json("workload", "list")["workloads"]
    ]
