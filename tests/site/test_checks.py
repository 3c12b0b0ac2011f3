"""What must hold across the fields of a site, beside its schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import at_path, find
from hidl_cli.site.checks import RULES

SITE = """\
name: mine
title: A cluster
match: {{hostname: '(login|n)\\d+\\.example\\.org'}}
login_host: {host}
scheduler: slurm
launchers: [srun]
node_types: {{}}
partitions: {{}}
default_partition: null
"""


def faults(tmp_path: Path, host: str) -> list[tuple[str, str, int | None]]:
    """What is wrong with a site of this login host: message, expectation, line."""
    file = tmp_path / "mine.yaml"
    file.write_text(SITE.format(host=host))
    found = examine(RULES, at_path("site", file)).problems
    return [(each.message, each.expected, each.mark.line if each.mark else None) for each in found]


@pytest.mark.parametrize("host", ["login1.example.org", "n042.example.org", "null"])
def test_a_login_host_that_matches_is_in_order(tmp_path: Path, host: str) -> None:
    assert faults(tmp_path, host) == []


@pytest.mark.parametrize("host", ["login.example.org", "login1.example.org.evil", "login1"])
def test_a_login_host_must_match_the_host_names_of_its_site(tmp_path: Path, host: str) -> None:
    (fault,) = faults(tmp_path, host)
    assert fault == (
        f"`{host}` does not match `match.hostname`",
        r"a host name that matches (login|n)\d+\.example\.org, or null",
        4,
    )


CACHE = """\
name: mine
title: A cluster with a build cache
scheduler: slurm
launchers: [srun]
node_types: {{}}
partitions: {{}}
default_partition: null
spack: {{build_caches: {{centre: {{{cache}}}}}}}
"""


@pytest.mark.parametrize(
    ("cache", "paths"),
    [
        ("url: 'oci://registry.example/cache'", []),
        ("url: 'oci://registry.example/cache', signed: false", []),
        ("url: 'oci://registry.example/cache', user: ada, password_variable: TOKEN", []),
        ("url: 'https://cache.example', signed: true, keys: [/centre.pub]", []),
        ("url: 'oci://registry.example/cache', signed: true", ["signed"]),
        ("url: 'oci+http://localhost:5000/cache', keys: [/centre.pub]", ["keys"]),
        ("url: 'oci://registry.example/cache', user: ada", ["user"]),
        ("url: 's3://bucket', password_variable: TOKEN", ["password_variable"]),
    ],
)
def test_build_caches_in_registries_are_unsigned_and_a_user_has_a_password(
    tmp_path: Path, cache: str, paths: list[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(CACHE.format(cache=cache))
    found = examine(RULES, at_path("site", file)).problems
    assert [each.path[-1] for each in found] == paths


GPUS = """\
name: mixed
title: Nodes with GPUs and without
scheduler: slurm
launchers: [srun]
node_types: {{cpu: {{gpus: 0}}, gpu: {{gpus: 4}}}}
partitions: {{main: {{node_type: cpu}}, gpu: {{node_type: gpu, restricted: {restricted}}}}}
default_partition: main
install: {{device: gpu}}
"""


@pytest.mark.parametrize(("restricted", "faulty"), [("false", False), ("true", True)])
def test_stacks_for_gpus_need_nodes_with_some(tmp_path: Path, restricted: str, faulty: bool) -> None:
    file = tmp_path / "mixed.yaml"
    file.write_text(GPUS.format(restricted=restricted))
    found = [(each.message, each.mark and each.mark.line) for each in examine(RULES, at_path("site", file)).problems]
    assert found == ([("no unrestricted partition has nodes with GPUs", 8)] if faulty else [])


LAB = """\
name: lab
title: Hosts without a queue
scheduler: {scheduler}
launchers: {launchers}
node_types: {{}}
partitions: {{}}
default_partition: null
"""


def faults_of_lab(tmp_path: Path, scheduler: str, launchers: str) -> list[tuple[str, str, int, int]]:
    """What is wrong with a site of these launchers: message, expectation, line and column."""
    file = tmp_path / "lab.yaml"
    file.write_text(LAB.format(scheduler=scheduler, launchers=launchers))
    found = examine(RULES, at_path("site", file)).problems
    return [(each.message, each.expected, each.mark.line, each.mark.column) for each in found if each.mark]


def test_hosts_over_ssh_take_launchers_that_need_no_scheduler(tmp_path: Path) -> None:
    assert faults_of_lab(tmp_path, "ssh", "[mpiexec, mpirun, mpirun_rsh]") == []
    assert faults_of_lab(tmp_path, "ssh", "[]") == []
    assert faults_of_lab(tmp_path, "slurm", "[srun, mpiexec]") == []


@pytest.mark.parametrize("launcher", ["srun", "jsrun", "ibrun", "pals", "flux"])
def test_hosts_over_ssh_have_no_launcher_of_a_scheduler(launcher: str, tmp_path: Path) -> None:
    (fault,) = faults_of_lab(tmp_path, "ssh", f"[mpiexec, {launcher}]")
    message = f"launcher {launcher} requires a scheduler; hosts over ssh have none"
    assert fault == (message, "one of: mpiexec, mpirun, mpirun_rsh", 4, 22)


def test_a_launcher_of_a_scheduler_that_is_taken_over_is_shown_where_it_is_named(config: Path) -> None:
    file = config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: mine\nextends: frontera\nscheduler: ssh\n")
    (fault,) = examine(RULES, find("site", "mine")).problems
    assert fault.mark is not None
    assert fault.mark.file.name == "frontera.yaml"
    file.write_text("name: mine\nextends: frontera\nscheduler: ssh\nlaunchers: [mpirun_rsh]\n")
    assert examine(RULES, find("site", "mine")).problems == ()


def test_a_login_host_is_not_taken_over_by_another_site(config: Path) -> None:
    file = config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: mine\nextends: frontera\nmatch: {hostname: elsewhere}\n")

    examined = examine(RULES, find("site", "mine"))

    assert examined.model is not None
    assert examined.model.login_host is None
