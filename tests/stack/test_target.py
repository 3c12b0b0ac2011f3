"""What a stack's lock is made for: by the site's nodes, the stack, and the indexes that are named."""

from __future__ import annotations

import pytest

from hidl_cli.site.load import load_site
from hidl_cli.stack.load import load_stack
from hidl_cli.stack.target import detect


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


@pytest.mark.parametrize(("site", "accelerator"), [("frontier", "rocm"), ("aurora", "xpu")])
def test_an_index_with_their_builds_serves_other_vendors_gpus(
    site: str, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_TORCH_BACKEND", accelerator)
    assert detect(load_site(site), load_stack("pytorch")).accelerator == accelerator


def test_a_stack_for_processors_is_the_same_on_nodes_with_gpus() -> None:
    stack = load_stack("mpi")
    assert detect(load_site("pitzer"), stack).accelerator == "cpu"
    with_own = stack.model_copy(update={"requirements": ["cupy-cuda12x"]})
    assert detect(load_site("pitzer"), with_own).accelerator == "cuda"
