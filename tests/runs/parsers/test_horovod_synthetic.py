"""What Horovod's synthetic benchmarks print."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hidl_cli.errors import MetricMissing
from hidl_cli.runs.parsers.horovod_synthetic import parse

OUTPUT = """\
Model: resnet50
Batch size: 32
Number of GPUs: 2
Running warmup...
Running benchmark...
Iter #0: 315.9 img/sec per GPU
Iter #1: 316.9 img/sec per GPU
Img/sec per GPU: 316.4 +-2.2
Total img/sec on 2 GPU(s): 632.8 +-4.4
"""
# As lines come out of slides: broken where the column ended.
SLIDES = """\
Img/sec per GPU: 316.4
+-2.2
Total img/sec on 2
GPU(s): 632.8 +-4
"""


def test_the_means_and_the_samples_of_each_iteration() -> None:
    metrics = parse(OUTPUT)
    assert metrics["images_per_second"] == {"value": 632.8, "unit": "images/s", "samples": [631.8, 633.8]}
    assert metrics["images_per_second_per_rank"] == {"value": 316.4, "unit": "images/s", "samples": [315.9, 316.9]}


def test_on_cpus_the_words_are_others() -> None:
    assert parse(OUTPUT.replace("GPU", "CPU")) == parse(OUTPUT)


def test_a_transcript_on_slides_is_read_though_its_lines_are_broken() -> None:
    metrics = parse(SLIDES)
    assert (metrics["images_per_second"]["value"], metrics["images_per_second"]["samples"]) == (632.8, [632.8])


@given(width=st.integers(25, 120))
@settings(max_examples=30, deadline=None)
def test_where_lines_are_broken_the_figures_are_the_same(width: int) -> None:
    assert parse(textwrap.fill(OUTPUT, width, break_long_words=False)) == parse(OUTPUT)


@given(mean=st.floats(0.1, 1e5), ranks=st.integers(1, 4096), spread=st.floats(0, 1e3))
@example(mean=1.05, ranks=165, spread=0.0)  # as far apart as roundings can be
@settings(max_examples=100, deadline=None)
def test_what_the_benchmark_prints_of_any_figures_is_read(mean: float, ranks: int, spread: float) -> None:
    """Its own format: both means are rounded from the same number."""
    text = f"Img/sec per CPU: {mean:.1f} +-{spread:.1f}\n"
    text += f"Total img/sec on {ranks} CPU(s): {ranks * mean:.1f} +-{ranks * spread:.1f}\n"
    assert parse(text)["images_per_second_per_rank"]["value"] == float(f"{mean:.1f}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        OUTPUT.replace("Total", "total of"),
        OUTPUT.partition("Img/sec")[0],
        OUTPUT + OUTPUT,
        OUTPUT.replace("632.8", "832.8"),
        OUTPUT.replace("on 2 GPU", "on 2 CPU"),
        OUTPUT.replace("316.4", "nan"),
        OUTPUT.replace("Iter #0", "Iter #2"),
        OUTPUT.replace("per GPU: 316.4 +-2.2", "per rank: 316.4 +-2.2"),
    ],
)
def test_what_is_not_its_whole_output_is_refused(text: str) -> None:
    with pytest.raises(MetricMissing):
        parse(text)
