"""The fabric, from the kernel's files, `ibstat` and `ibv_devinfo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.site.probes import host
from hidl_cli.site.probes.host import ThisHost
from tests.site.recording import DIRECTORY, RecordedHost, recorded


def adapters(root: Path, *ports: tuple[str, str, str, str]) -> ThisHost:
    """A host whose kernel shows these ports: adapter, state, rate, link layer."""
    for adapter, state, rate, layer in ports:
        port = root / f"sys/class/infiniband/{adapter}/ports/1"
        port.mkdir(parents=True)
        for name, text in (("state", state), ("rate", rate), ("link_layer", layer)):
            (port / name).write_text(f"{text}\n")
    return ThisHost({"PATH": ""}, root)


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([("mlx5_0", "4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand")], "InfiniBand, 200 Gb/s (4X HDR)"),
        (
            [(f"mlx5_{n}", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand") for n in range(8)],
            "8 x InfiniBand, 400 Gb/s (4X NDR)",
        ),
        (
            [
                ("mlx5_0", "1: DOWN", "400 Gb/sec (4X NDR)", "InfiniBand"),
                ("mlx5_1", "4: ACTIVE", "100 Gb/sec (2X HDR)", "InfiniBand"),
                ("mlx5_2", "4: ACTIVE", "200 Gb/sec (4X HDR)", "Ethernet"),
            ],
            "InfiniBand, 100 Gb/s (2X HDR)",
        ),
        ([("mlx5_0", "4: ACTIVE", "25 Gb/sec (1X EDR)", "Ethernet")], "RoCE (RDMA over Ethernet), 25 Gb/s (1X EDR)"),
        ([("hfi1_0", "4: ACTIVE", "100 Gb/sec (4X EDR)", "InfiniBand")], "Omni-Path, 100 Gb/s"),
    ],
    ids=["one", "eight rails", "the port that is up", "RoCE", "Omni-Path"],
)
def test_the_kernel_reports_kind_and_speed(
    tmp_path: Path, ports: list[tuple[str, str, str, str]], expected: str
) -> None:
    found = host.probe_fabric(adapters(tmp_path, *ports))

    assert found is not None
    assert found.value == expected


@pytest.mark.parametrize(
    ("system", "value", "program"),
    [("ampere", "InfiniBand, 200 Gb/s", "ibstat"), ("summit", "2 x InfiniBand, 100 Gb/s", "ibv_devinfo")],
)
def test_programs_report_where_the_kernel_does_not(system: str, value: str, program: str) -> None:
    found = host.probe_fabric(recorded(system))

    assert found is not None
    assert (found.value, found.source.split()[0]) == (value, program)


def test_a_port_that_is_down_is_not_a_fabric(tmp_path: Path) -> None:
    assert host.probe_fabric(adapters(tmp_path, ("mlx5_0", "1: DOWN", "10 Gb/sec (4X SDR)", "InfiniBand"))) is None


def test_a_host_without_adapters_has_none() -> None:
    assert host.probe_fabric(RecordedHost(DIRECTORY / "none")) is None
