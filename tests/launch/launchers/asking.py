"""Requests for the tests of launchers."""

from __future__ import annotations

from typing import Any

from hidl_cli.launch.launchers.contract import Request
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Family, Library

PROGRAM = ("python", "-m", "train", "--note=a b")


def placement(
    nodes: int = 2, per_node: int = 4, *, threads: int = 8, ranks: int | None = None, bind: bool = True
) -> Placement:
    return Placement(nodes, per_node, nodes * per_node if ranks is None else ranks, threads, bind=bind)


def library(family: Family, **keys: Any) -> Library:
    """A library that the site offers, installed in /opt/mpi."""
    return Library(family, family, **{"prefix": "/opt/mpi", **keys})


def request(
    family: Family, where: Placement | None = None, /, *, mpi: dict[str, Any] | None = None, **keys: Any
) -> Request:
    """Start PROGRAM on 2 nodes with 4 ranks of 8 threads each, unless another placement is given."""
    return Request(where or placement(), PROGRAM, library(family, **(mpi or {})), hostfile="steps/1/hosts", **keys)
