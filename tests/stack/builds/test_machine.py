"""What a build knows of the machine."""

from __future__ import annotations

import os

import pytest

from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack.builds import build as building


def test_jobs_are_as_many_as_the_free_memory_holds() -> None:
    assert building.build_jobs(1e-6) <= len(os.sched_getaffinity(0))
    assert building.build_jobs(1e6) == 1


def test_another_compiler_or_other_flags_make_another_identity() -> None:
    plain = {"PATH": os.environ["PATH"]}
    assert building.identity(plain) == building.identity(plain | {"EDITOR": "ed"})
    assert building.identity(plain) != building.identity(plain | {"CXXFLAGS": "-O0"})
    assert building.identity(plain) != building.identity(plain | {"CXX": "no-such-compiler"})


def test_a_build_sees_nothing_that_is_not_part_of_its_identity() -> None:
    seen = building.environment({"PATH": "/bin", "CFLAGS": "-g", "HOROVOD_GPU_OPERATIONS": "NCCL", "MAKEFLAGS": "-j64"})
    assert seen == {"PATH": "/bin", "CFLAGS": "-g"}


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingPrecondition, match="requires no-such-program, which was not found on PATH"):
        building.require(["sh", "no-such-program"], "it", {"PATH": os.environ["PATH"]})
