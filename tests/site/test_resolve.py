"""A site as it resolves on this machine: unknown facts of ``detect: true`` node types are filled, others are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hidl_cli.site.load import load_site, resolve
from hidl_cli.site.machine import machine
from hidl_cli.site.schema import Site


def site(**node_type: object) -> Site:
    return Site.model_validate(
        {
            "name": "x",
            "title": "X",
            "scheduler": "local",
            "launchers": ["mpiexec"],
            "node_types": {"host": node_type},
            "partitions": {"q": {"node_type": "host"}},
            "default_partition": "q",
        }
    )


def test_local_is_this_machine(config: Path) -> None:
    node = load_site("local").node_type()

    assert node.cores == machine().cores
    assert node.arch == os.uname().machine
    assert node.gpus is not None


def test_a_given_fact_is_kept_and_a_null_one_filled() -> None:
    node = resolve(site(detect=True, cores=3, gpus=0)).node_type()

    assert (node.cores, node.gpus) == (3, 0)
    assert node.memory_gib == machine().memory_gib


def test_nothing_is_detected_unless_asked_for() -> None:
    assert resolve(site()) == site()


def test_nvidia_smi_is_asked_only_where_gpus_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\necho 'NVIDIA A40'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    resolve(site(detect=True, gpus=0))
    resolve(site(detect=True, gpus=2, gpu_model="NVIDIA A100"))

    assert not (tmp_path / "asked").exists()
    assert resolve(site(detect=True)).node_type().gpu_model == "NVIDIA A40"
