"""What a stack's lock is made for: by the site's nodes, the stack, and the indexes that are named."""

from __future__ import annotations

import pytest

from hidl_cli.site.load import load_site
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.target import detect, site_for_accelerator


@pytest.fixture(autouse=True)
def no_other_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_TORCH_BACKEND", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("site", "accelerator", "gpus"),
    [
        ("pitzer", "cuda", ("sm_70",)),
        ("delta", "cuda", ("sm_80", "sm_86", "sm_90")),
        ("vista", "cuda", ("sm_90",)),
        ("frontera", "cpu", ()),
        ("frontier", "cpu", ()),
        ("aurora", "cpu", ()),
    ],
)
def test_the_default_partitions_nodes_decide(site: str, accelerator: str, gpus: tuple[str, ...]) -> None:
    target = detect(load_site(site), load_stack("pytorch"))
    assert (target.accelerator, set(target.gpus)) == (accelerator, set(gpus))


@pytest.mark.parametrize(
    ("site", "device", "accelerator", "gpus"),
    [
        ("anvil", None, "cpu", ()),
        ("anvil", "gpu", "cuda", ("sm_80", "sm_90")),
        ("anvil", "cpu", "cpu", ()),
        ("stampede3", "gpu", "cuda", ("sm_90",)),
        ("perlmutter", "cpu", "cpu", ()),
        ("perlmutter", "gpu", "cuda", ("sm_80",)),
        ("vista", "cpu", "cpu", ()),
    ],
)
def test_a_site_says_what_its_stacks_are_for(
    site: str, device: str | None, accelerator: str, gpus: tuple[str, ...]
) -> None:
    target = detect(load_site(site).with_install(device=device), load_stack("pytorch"))
    assert (target.accelerator, target.gpus) == (accelerator, gpus)


@pytest.mark.parametrize(
    ("site", "installed_for", "accelerator"),
    [
        ("anvil", "cuda", "cuda"),
        ("anvil", "cpu", "cpu"),
        ("anvil", None, "cpu"),
        ("perlmutter", "cpu", "cuda"),
        ("frontera", "cuda", "cpu"),
    ],
)
def test_what_is_there_already_says_what_it_is_for(site: str, installed_for: str | None, accelerator: str) -> None:
    assert (
        detect(site_for_accelerator(load_site(site), installed_for), load_stack("pytorch")).accelerator == accelerator
    )


@pytest.mark.parametrize(("site", "accelerator"), [("frontier", "rocm"), ("aurora", "xpu")])
def test_an_index_with_their_builds_serves_other_vendors_gpus(
    site: str, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_TORCH_BACKEND", accelerator)
    assert detect(load_site(site), load_stack("pytorch")).accelerator == accelerator


@pytest.mark.parametrize(
    ("stack", "site", "platform", "accelerator"),
    [
        ("tensorflow", "pitzer", "linux-x86_64", "cuda"),
        ("tensorflow", "vista", "linux-aarch64", "cpu"),
        ("tensorflow", "frontier", "linux-x86_64", "cpu"),
        ("hyparflow", "pitzer", "linux-x86_64", "cuda"),
        ("hyparflow", "vista", "linux-aarch64", "cpu"),
        ("horovod", "pitzer", "linux-x86_64", "cpu"),
        ("horovod-pytorch", "perlmutter", "linux-x86_64", "cuda"),
        ("horovod-pytorch", "frontier", "linux-x86_64", "cpu"),
        ("mpi4dask", "vista", "linux-aarch64", "cuda"),
        ("mpi4dask", "frontier", "linux-x86_64", "rocm"),
        ("mpi4dask", "aurora", "linux-x86_64", "cpu"),
        ("mpi4dask", "frontera", "linux-x86_64", "cpu"),
        ("pytorch", "vista", "linux-aarch64", "cuda"),
    ],
)
def test_a_stack_with_builds_of_its_own_for_gpus_serves_these_alone(
    stack: str, site: str, platform: str, accelerator: str
) -> None:
    target = detect(load_site(site), load_stack(stack), platform)
    assert (target.accelerator, target.platform) == (accelerator, platform)


def test_on_its_own_nodes_a_stack_requires_imports_and_builds_against_what_is_there() -> None:
    stack = load_stack("horovod")
    there = stack.on("cpu", "aarch64")
    assert "tensorflow>=2.18" in there.requirements
    assert "tensorflow-cpu" not in there.packages
    assert [build.against for build in there.builds] == [["mpich", "torch", "numpy", "tensorflow"]]
    assert stack.on("cpu", "x86_64") == stack.on("cuda", "x86_64") == stack
    assert load_stack("mpi4dask").on("cuda", "aarch64").verify.imports[-2:] == ["cupy", "cudf"]


def test_what_a_variant_adds_to_a_build_is_beside_what_the_build_has() -> None:
    (everywhere,) = load_stack("horovod-pytorch").builds
    (there,) = load_stack("horovod-pytorch").on("cuda", "x86_64").builds
    assert there.environment.items() > everywhere.environment.items()
    assert there.requires.items() > everywhere.requires.items()
    assert (there.environment["HOROVOD_GPU_OPERATIONS"], there.requires["nvidia-nccl-cu13"]) == ("NCCL", "")


def test_horovod_sums_on_gpus_by_nccl_or_over_mpi() -> None:
    (nccl,), (mpi,) = (load_stack(f"horovod-pytorch{end}").on("cuda", "x86_64").builds for end in ("", "-mpi"))
    assert mpi.environment == nccl.environment | {"HOROVOD_GPU_OPERATIONS": "MPI"}
    assert mpi.model_copy(update={"environment": nccl.environment}) == nccl


def test_horovod_is_built_as_one_with_and_without_tensorflow() -> None:
    (both,), (alone,) = load_stack("horovod").builds, load_stack("horovod-pytorch").builds
    environment = {name: value for name, value in both.environment.items() if name != "HOROVOD_WITH_TENSORFLOW"}
    without = {
        "environment": environment | {"HOROVOD_WITHOUT_TENSORFLOW": "1"},
        "against": [name for name in both.against if name != "tensorflow-cpu"],
    }
    assert both.model_copy(update=without) == alone
    assert load_stack("horovod").advisories == load_stack("horovod-pytorch").advisories


def test_requirements_of_ones_own_may_use_gpus_that_the_stack_does_not() -> None:
    stack = load_stack("horovod").model_copy(update={"requirements": ["cupy-cuda12x"]})
    assert detect(load_site("pitzer"), stack).accelerator == "cuda"


def test_an_index_of_frameworks_does_not_change_a_stack_with_builds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_TORCH_BACKEND", "xpu")
    assert detect(load_site("aurora"), load_stack("mpi4dask")).accelerator == "cpu"


def test_a_stack_for_processors_is_the_same_on_nodes_with_gpus() -> None:
    stack = load_stack("mpi")
    assert detect(load_site("pitzer"), stack).accelerator == "cpu"
    with_own = stack.model_copy(update={"requirements": ["cupy-cuda12x"]})
    assert detect(load_site("pitzer"), with_own).accelerator == "cuda"
