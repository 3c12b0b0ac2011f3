"""Our launchers in ReFrame: registered under names of their own, with hidl's own commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from reframe.core.backends import getlauncher

from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.load import load
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Site
from hidl_cli.validate.reframe import launcher_command as command
from hidl_cli.validate.reframe import name_in_reframe
from hidl_cli.validate.reframe import register_launchers as register


def with_mvapich2(name: str, launcher: str) -> Site:
    """A shipped site with this launcher, and an MVAPICH2 that it starts."""
    site = load(RULES, name)
    mpi = type(site).model_validate(
        {**site.model_dump(), "mpi": {"mv2": {"family": "mvapich2", "prefix": "/opt/mv2"}}, "default_mpi": "mv2"}
    )
    return mpi.model_copy(update={"launchers": [launcher]})


@pytest.mark.parametrize("name", ["mpirun_rsh", "ibrun", "jsrun", "pals", "flux"])
def test_each_is_registered_once_and_found_by_reframe(name: str) -> None:
    site = with_mvapich2("test-cluster", name)
    register(site)
    register(site)
    assert getlauncher(name_in_reframe(name)).registered_name == f"hidl-{name}"


def test_mpirun_rsh_gets_its_hosts_from_the_allocation(tmp_path: Path) -> None:
    line = command(with_mvapich2("test-cluster", "mpirun_rsh"), "mpirun_rsh", 4, 2, 1)
    (tmp_path / "scontrol").write_text('#!/bin/sh\nprintf "node1\\nnode2\\nnode3\\n"\n')
    (tmp_path / "scontrol").chmod(0o755)
    program = "set -u\nSLURM_JOB_NODELIST=x\nPATH=.:$PATH\nunset LD_PRELOAD VIRTUAL_ENV\n"
    fake = "function /opt/mv2/bin/mpirun_rsh { printf '<%s>' \"$@\"; }\n"

    told = subprocess.run(
        ["bash", "-c", f"{program}{fake}{line} ./a.out"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout

    assert (tmp_path / "hidl-hosts").read_text() == "node1:2\nnode2:2\n"
    assert told.startswith("<-np><4><-hostfile><hidl-hosts>")
    assert "<PATH=.:" in told
    assert "VIRTUAL_ENV" not in told
    assert told.endswith("<./a.out>")


def test_ibrun_and_jsrun_need_no_hosts() -> None:
    assert "ibrun -n 4 -o 0" in command(with_mvapich2("test-cluster", "ibrun"), "ibrun", 4, 2, 1)
    assert "jsrun -n 2 -r 1 -a 2" in command(with_mvapich2("lassen", "jsrun"), "jsrun", 4, 2, 1)


def test_pals_gets_its_hosts_and_no_words_for_variables() -> None:
    site = with_mvapich2("test-cluster", "pals")
    described = site.model_copy(
        update={"mpi": {"cray": type(site.mpi["mv2"])(family="cray-mpich")}, "default_mpi": None}
    )
    *_, hosts, start = command(described, "pals", 4, 2, 1).splitlines()
    assert hosts.startswith("list_hosts | head -n 2")
    assert start == "mpiexec -n 4 --ppn 2 --hostfile hidl-hosts --depth 1 --cpu-bind depth --envall"


def test_a_site_without_a_library_for_it_is_reported() -> None:
    site = load(RULES, "test-cluster").model_copy(update={"launchers": ["ibrun"], "mpi": {}, "default_mpi": None})
    with pytest.raises(InvalidInput, match="no MPI library that supports launcher ibrun"):
        command(site, "ibrun", 2, 1, 1)
