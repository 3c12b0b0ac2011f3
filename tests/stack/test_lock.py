"""Locks: what they say, when they serve, and how damage is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import InvalidInput
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.lock import Lock, Package, choose, parse, read, requirements, why_unfit
from hidl_cli.stack.schema import Stack
from hidl_cli.stack.target import Target
from tests.conftest import REPOSITORY

SHIPPED = REPOSITORY / "recipes" / "locks"
STACK = Stack(name="toy", title="a toy", mpi="mpich", packages={"MPICH": ">=5.0", "num_py": ""})
TARGET = Target("cp311", "linux-x86_64", (2, 36), "cpu", Path("/usr/bin/python3"))
LOCK = Lock(
    stack="toy",
    python="cp311",
    platform="linux-x86_64",
    glibc=(2, 28),
    accelerator="cpu",
    requires=("mpich>=5.0", "num-py"),
    packages=(Package("mpich", "5.0.2", ("a" * 64, "b" * 64)), Package("num-py", "1.0+cpu", ("c" * 64,))),
)


def written(directory: Path, lock: Lock) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / lock.filename
    file.write_text(lock.text(), encoding="utf-8")
    return file


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read(written(tmp_path, LOCK)) == LOCK


def test_its_body_is_a_requirements_file_with_hashes() -> None:
    assert LOCK.body() == (
        f"mpich==5.0.2 \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n"
        f"num-py==1.0+cpu \\\n    --hash=sha256:{'c' * 64}\n"
    )


def test_the_digest_reports_other_bits_and_not_another_header() -> None:
    assert replace(LOCK, glibc=None).digest == LOCK.digest
    assert replace(LOCK, packages=LOCK.packages[:1]).digest != LOCK.digest


def test_requirements_are_normalized_and_sorted() -> None:
    assert requirements(STACK) == ("mpich>=5.0", "num-py")
    assert why_unfit(LOCK, STACK, TARGET) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"requires": ("mpich>=4.0", "num-py")}, "mpich>=4.0 is now mpich>=5.0"),
        ({"requires": ("mpich>=5.0",)}, "num-py was added"),
        ({"requires": ("mpich>=5.0", "num-py", "torch")}, "torch was removed"),
        ({"python": "cp312"}, "created for toy cp312"),
        ({"accelerator": "cuda"}, "cuda"),
        ({"glibc": (2, 40)}, "glibc 2.40"),
    ],
)
def test_a_lock_that_does_not_serve_says_why(change: dict[str, object], reason: str) -> None:
    assert reason in str(why_unfit(replace(LOCK, **change), STACK, TARGET))  # type: ignore[arg-type]


def test_a_machine_without_glibc_gets_no_lock_that_needs_it() -> None:
    assert why_unfit(LOCK, STACK, replace(TARGET, glibc=None)) is not None
    assert why_unfit(replace(LOCK, glibc=None), STACK, replace(TARGET, glibc=None)) is None


def test_the_first_lock_that_fits_wins_and_stale_ones_are_named(tmp_path: Path) -> None:
    stale = written(tmp_path / "user", replace(LOCK, requires=("mpich>=4.0", "num-py")))
    fresh = written(tmp_path / "root", LOCK)
    written(tmp_path / "shipped", replace(LOCK, packages=()))
    choice = choose(STACK, TARGET, [tmp_path / name for name in ("user", "none", "root", "shipped")])
    assert (choice.file, choice.lock) == (fresh, LOCK)
    assert [passed_over.file for passed_over in choice.passed_over] == [stale]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda text: text + "-r /etc/passwd\n", 16),
        (lambda text: text + "numpy==1.0\n", 16),
        (lambda text: text + "--index-url https://example.invalid/simple\n", 16),
        (lambda text: text.replace("hidl.lock/1", "hidl.lock/9"), 0),
        (lambda text: text.replace("# stack: toy\n", ""), 0),
        (lambda text: text.replace("requires: mpich>=5.0", "requires: mpich>=4.0"), 0),
        (lambda text: text.replace("glibc: 2.28", "glibc: new"), 0),
    ],
)
def test_a_damaged_lock_is_invalid_input_with_its_line(tmp_path: Path, damage, line: int) -> None:  # type: ignore[no-untyped-def]
    file = written(tmp_path, LOCK)
    file.write_text(damage(file.read_text()))
    with pytest.raises(InvalidInput) as caught:
        read(file)
    (problem,) = caught.value.problems
    assert problem.mark is not None
    assert (problem.mark.file, problem.mark.line) == (file, line)


def test_a_lock_in_another_encoding_is_invalid_input(tmp_path: Path) -> None:
    file = tmp_path / "lock.txt"
    file.write_bytes("# stack: mpi".encode("utf-16"))
    with pytest.raises(InvalidInput, match="cannot be read"):
        read(file)


@pytest.mark.parametrize(
    "name",
    [
        "horovod-pytorch",
        "horovod-pytorch-mpi",
        "hyparflow",
        "hyparflow-openmpi",
        "mpi",
        "openmpi",
        "pytorch",
        "tensorflow",
    ],
)
def test_shipped_locks_fit_the_shipped_recipes(name: str) -> None:
    target = replace(TARGET, glibc=(2, 28))
    choice = choose(load_stack(name), target, [SHIPPED])
    assert choice.passed_over == ()
    assert choice.lock is not None


@pytest.mark.parametrize(
    ("stack", "platform", "accelerator", "held"),
    [
        ("tensorflow", "linux-x86_64", "cuda", "tensorflow"),
        ("mpi4dask", "linux-x86_64", "cuda", "cudf-cu12"),
        ("mpi4dask", "linux-aarch64", "cuda", "cupy-cuda12x"),
        ("mpi4dask", "linux-x86_64", "rocm", "cupy-rocm-7-0"),
        ("horovod-pytorch", "linux-x86_64", "cuda", "cuda-toolkit"),
        ("horovod-pytorch", "linux-aarch64", "cuda", "nvidia-nccl-cu13"),
        ("horovod-pytorch-mpi", "linux-x86_64", "cuda", "cuda-toolkit"),
        ("horovod-pytorch-mpi", "linux-aarch64", "cuda", "cuda-toolkit"),
    ],
)
def test_for_gpus_shipped_locks_hold_the_stacks_own_builds(
    stack: str, platform: str, accelerator: Any, held: str
) -> None:
    recipe = load_stack(stack)
    choice = choose(recipe, replace(TARGET, platform=platform, accelerator=accelerator, glibc=(2, 28)), [SHIPPED])
    assert (choice.passed_over, choice.lock is not None) == ((), True)
    names = {package.name for package in choice.lock.packages} if choice.lock else set()
    assert held in names
    assert names.isdisjoint(recipe.variants[accelerator].instead_of)
    of_nvidia = [name.rpartition("-cu")[2] for name in names if name.startswith("nvidia-")]
    assert len({major if major.isdecimal() else "13" for major in of_nvidia}) <= 1  # wheels of CUDA 13 need not say it


def test_shipped_locks_name_no_host_and_those_for_processors_no_cuda() -> None:
    for file in SHIPPED.iterdir():
        text = file.read_text()
        assert "://" not in text
        assert "nvidia" not in text or "-cuda" in file.name
        assert "nvidia" in text or "-cuda" not in file.name or file.name.startswith("omb-")  # what it compiles has CUDA
        if "torch==" in text:
            assert ("+cpu" in text) == ("-cpu" in file.name)


@pytest.mark.parametrize(
    ("platform", "gpus", "torch"),
    [
        ("linux-x86_64", ("sm_80",), "2.15.0"),
        ("linux-x86_64", ("sm_70",), "2.10.0"),
        ("linux-x86_64", ("sm_80", "sm_70"), "2.10.0"),
        ("linux-x86_64", ("sm_60",), "2.7.1"),
        ("linux-x86_64", ("sm_80", "sm_37"), "2.15.0"),
        ("linux-aarch64", ("sm_90",), "2.15.0"),
    ],
)
def test_for_gpus_a_shipped_lock_with_kernels_for_them_serves(platform: str, gpus: tuple[str, ...], torch: str) -> None:
    target = replace(TARGET, platform=platform, accelerator="cuda", gpus=gpus)
    choice = choose(load_stack("pytorch"), target, [SHIPPED])
    assert choice.lock is not None
    assert choice.lock.version("torch") == torch


def test_a_lock_without_kernels_for_the_gpus_is_passed_over_and_its_own_has_their_name(tmp_path: Path) -> None:
    target = replace(TARGET, accelerator="cuda", gpus=("sm_70",))
    newest = replace(LOCK, accelerator="cuda", packages=(Package("torch", "2.15.0", ("a" * 64,)),))
    other = written(tmp_path / "user", newest)
    last = replace(newest, gpu="sm_70", packages=(Package("torch", "2.10.0", ("a" * 64,)),))
    own = written(tmp_path / "root", last)
    assert (other.name, own.name) == ("toy-cp311-linux-x86_64-cuda.txt", "toy-cp311-linux-x86_64-cuda-sm_70.txt")
    choice = choose(STACK, target, [tmp_path / "user", tmp_path / "root"])
    assert (choice.file, choice.lock) == (own, last)
    (passed_over,) = choice.passed_over
    assert passed_over.reason.endswith("not for sm_70; the last release that supports it is 2.10.0")


VERSIONS = st.from_regex(
    r"(?:[0-9]!)?[0-9]{1,4}(?:\.[0-9]{1,3}){0,3}(?:(?:a|b|rc|\.post|\.dev)[0-9]{1,2})?(?:\+[a-z0-9.]{1,8})?",
    fullmatch=True,
)
NAMES = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)


@given(
    packages=st.lists(
        st.builds(
            Package,
            NAMES,
            VERSIONS.filter(lambda version: version[-1] != "."),
            st.lists(st.from_regex(r"[0-9a-f]{64}", fullmatch=True), min_size=1, max_size=3, unique=True).map(tuple),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    glibc=st.none() | st.tuples(st.integers(2, 3), st.integers(0, 60)),
    requires=st.lists(
        st.tuples(NAMES, st.sampled_from(["", ">=1.0", ">=1,<2; python_version < '3.12'", "==1.*"])), max_size=3
    ),
    gpu=st.none() | st.sampled_from(["sm_70", "gfx90a"]),
)
def test_any_lock_is_read_as_it_was_written(
    packages: tuple[Package, ...], glibc: tuple[int, int] | None, requires: list[tuple[str, str]], gpu: str | None
) -> None:
    lock = replace(LOCK, packages=packages, glibc=glibc, requires=tuple(f"{a}{b}" for a, b in requires), gpu=gpu)
    assert parse(lock.text(), Path("lock.txt")) == lock
