"""Hosts that the user names: words, host files, and a site with hosts in the place of its scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.launch.hosts import Hosts, on_hosts, parse_hosts, read_hostfile
from hidl_cli.site.load import load_site


@pytest.mark.parametrize(
    ("text", "names", "slots"),
    [
        ("gpu11,gpu12", ("gpu11", "gpu12"), {}),
        ("gpu12,gpu11,gpu12", ("gpu12", "gpu11"), {}),
        ("gpu[11-13],login1", ("gpu11", "gpu12", "gpu13", "login1"), {}),
        ("gpu[11,13]:2", ("gpu11", "gpu13"), {"gpu11": 2, "gpu13": 2}),
        ("10.0.0.1:4 b.example.org", ("10.0.0.1", "b.example.org"), {"10.0.0.1": 4}),
    ],
)
def test_words(text: str, names: tuple[str, ...], slots: dict[str, int]) -> None:
    assert parse_hosts(text) == Hosts(names, slots)


def test_every_invalid_host_is_named() -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_hosts("-oProxyCommand=id,ok,me@gpu11,$(id),gpu12:0,gpu13:x")
    assert len(raised.value.problems) == 5
    assert "~/.ssh/config" in raised.value.problems[1].expected


@pytest.mark.parametrize(
    ("text", "names", "slots"),
    [
        ("# MPICH\nhost1\nhost2:2\nhost3:4 binding=user:0-3\n", ("host1", "host2", "host3"), {"host2": 2, "host3": 4}),
        ("aa slots=2\nbb slots=4 max-slots=8  # big\n", ("aa", "bb"), {"aa": 2, "bb": 4}),
        ("n0:2:mlx5_0\nn1:2:mlx5_1\n", ("n0", "n1"), {"n0": 2, "n1": 2}),
        ("n0\nn0\nn1\nn1\n", ("n0", "n1"), {"n0": 2, "n1": 2}),
        ("\n  host1  \n\thost2\n", ("host1", "host2"), {}),
    ],
)
def test_host_files_of_mpich_open_mpi_and_mvapich(
    tmp_path: Path, text: str, names: tuple[str, ...], slots: dict[str, int]
) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    assert read_hostfile(file) == Hosts(names, slots)


def test_every_invalid_line_of_a_host_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("ok\n-x\nok2 slots=two\nok3 colour=red\n$(id):3\n")
    with pytest.raises(InvalidInput) as raised:
        read_hostfile(file)
    assert sorted({problem.mark.line for problem in raised.value.problems if problem.mark}) == [2, 3, 4, 5]


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"\xff\xfe"])
def test_a_host_file_without_hosts_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "hosts"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises((InvalidInput, UsageError)):
        read_hostfile(file)


def test_ranks_per_node_are_the_slots_unless_given() -> None:
    hosts = parse_hosts("a:4,b:4")
    assert hosts.ranks_per_node(2, None) == 4
    assert hosts.ranks_per_node(2, 2) == 2
    with pytest.raises(UsageError, match="a has 4 slot"):
        hosts.ranks_per_node(2, 8)
    with pytest.raises(UsageError, match="different numbers of slots"):
        parse_hosts("a:4,b:2").ranks_per_node(2, None)


def test_hosts_take_the_place_of_a_site_s_scheduler() -> None:
    site = on_hosts(load_site("ri2"), parse_hosts("gpu11,gpu12"))
    assert site.scheduler == "ssh"
    assert site.launchers == ["mpirun_rsh"]
    assert site.partitions["broadwell-k80"].queue is None
    assert site.default_mpi == "mvapich2-gdr"
    assert (site.node_type().hosts, site.node_type().count) == ("gpu11,gpu12", 2)


def test_hosts_take_the_place_of_those_in_a_site_s_file() -> None:
    site = on_hosts(load_site("dgx2"), parse_hosts("a,b"))
    assert (site.node_type().hosts, site.launchers) == ("a,b", ["mpirun_rsh"])
    assert on_hosts(site, None) is site
