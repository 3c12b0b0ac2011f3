"""GPUs in the generic resources of Slurm, in every form that gres.conf and `scontrol show node` have."""

from __future__ import annotations

import pytest

from hidl_cli.site.probes.gres import gpus_of


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("(null)", (0, None)),
        ("", (0, None)),
        ("gpu", (1, None)),
        ("gpu:4", (4, None)),
        ("gpu:a100:4", (4, "a100")),
        ("gpu:a100:4(S:0-1)", (4, "a100")),
        ("gpu:a100:4(S:0,3)", (4, "a100")),
        ("gpu:a100:no_consume:4", (4, "a100")),
        ("gpu:v100:2,gpu:t4:2", (4, "t4, v100")),
        ("gpu:a100:2,gpu:a100:2", (4, "a100")),
        ("fpga:1,gpu:v100:2(S:0),mps:200", (2, "v100")),
        ("gpu:1g.5gb:7", (7, "1g.5gb")),
        ("craynetwork:4", (0, None)),
        ("gpu:4K", (4096, None)),
        ("gpu:a100:many", (None, None)),
    ],
)
def test_gpus_are_counted_whatever_form_they_have(gres: str, expected: tuple[int | None, str | None]) -> None:
    assert gpus_of(gres) == expected
