"""Documents of ``benchmarks.gpu`` as Markdown: a page of one, and the table of what GPUs have seen so far.

::

    python -m benchmarks.gpu.page

writes both, for the documents in ``results/``, into the documentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.launch import Found

Document = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "seen-on-gpus.md"

_LEARNING = ("kmeans", "knn", "matmul", "linear-regression", "tsvd")
_BUFFERS = ("cupy", "numba", "torch")
#: What hidl does on GPUs, by the trials that show it, all of them; none: nothing tries it yet.
SEEN: dict[str, Sequence[str]] = {
    "each rank's GPU is found and named": ("each rank's GPU",),
    "no GPU is visible: the run ends, with the cause": ("no GPU is visible",),
    "gradients, staged through pinned memory": ("sums, staged",),
    "gradients, handed to a GPU-aware MPI": ("sums, direct",),
    "`resnet50` and `gpt`, `backend=mpi4py`": ("resnet50, 2 ranks", "gpt, 2 ranks"),
    "`resnet50` and `gpt`, `backend=nccl`": ("resnet50, 1 rank, nccl", "gpt, 1 rank, nccl"),
    "`resnet50` and `gpt`, `backend=horovod`": ("resnet50, 1 rank(s), horovod", "gpt, 1 rank(s), horovod"),
    f"`{'`, `'.join(_LEARNING)}` on CuPy": tuple(f"{name}, staged" for name in _LEARNING),
    "the same, `gpu_buffers=direct`": tuple(f"{name}, direct" for name in _LEARNING),
    "`omb-latency`, buffers of CuPy, Numba, PyTorch": tuple(f"omb-latency, {buffer}" for buffer in _BUFFERS),
    "`omb-allreduce`, the same buffers": tuple(f"omb-allreduce, {buffer}" for buffer in _BUFFERS),
    "`omb-put-bw`, CuPy's buffers": ("omb-put-bw, cupy",),
    "Dask's arrays on CuPy over `mpi://`": ("dask-transpose over mpi://", "dask-svd over mpi://"),
    "Dask's data frames on cuDF; TensorFlow; hyparflow; OMB in C": (),
    "several GPUs, several nodes; MIG; AMD's and Intel's GPUs": (),
}
_NOT_SHOWN = ("trial_seconds", "seconds", "samples", "source")
_FEW = 3
_RIGHT, _FAILED = "right", "**failed**"


def render(document: Document) -> str:
    """Return the page of one document."""
    return "# hidl on this GPU\n\n" + _section(document, "##")


def table(documents: Sequence[Document]) -> str:
    """Return what GPUs have seen: the rows of ``SEEN``, a column for each document."""
    heads = [f"{_gpu(each)}, {_mpi(each)}" for each in documents]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for text, names in SEEN.items():
        cells = [_together([each["trials"].get(name) for name in names]) for each in documents]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def published() -> dict[Path, str]:
    """Return the files that hold what the documents in ``RESULTS`` say, each with its text."""
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    sections = [f"## {_gpu(each)}, {_mpi(each)}\n\n{_section(each, '###')}" for each in documents]
    return {PAGE: _HEAD + table(documents) + "\n" + "\n".join(sections)}


_HEAD = """\
# What GPUs have seen of hidl

[`make gpu`](../how-to/choose-the-device.md#try-a-gpu) tries on a machine's GPUs what hidl does there. This page is
made from its documents (`benchmarks/gpu/results/`) by `python -m benchmarks.gpu.page`. Where there are more ranks than
GPUs, ranks share one. A cell is right only if all its trials are.

"""


def _section(document: Document, level: str) -> str:
    trials = document["trials"]
    lines = [_machine(document), "", *(line for note in document.get("notes", ()) for line in (note, ""))]
    lines += ["| trial | outcome | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {_outcome(found)} | {found['trial_seconds']} |" for name, found in trials.items()]
    for name, found in trials.items():
        if "operations" in found:
            lines += ["", f"{level} {name}", "", "| operation | |", "|---|---|"]
            lines += [f"| {operation} | {outcome} |" for operation, outcome in found["operations"].items()]
        if isinstance(found.get("images_per_second"), dict):
            lines += ["", f"{level} {name}", "", "| way | images/s of all ranks |", "|---|---|"]
            lines += [f"| {way} | {rate:,.0f} |" for way, rate in found["images_per_second"].items()]
        if "failed" in found:
            lines += ["", f"{level} {name}", "", "```text", *found.get("said", ()), "```"]
    return "\n".join(lines) + "\n"


def _together(found: Sequence[Found | None]) -> str:
    seen = [each for each in found if each is not None and "absent" not in each]
    if any("failed" in each for each in seen):
        return _FAILED
    if any("refused" in each for each in seen):
        return "refused: not GPU-aware"
    if not seen:
        return "not seen"
    return _RIGHT if len(seen) == len(found) else "right, as far as tried"


def _machine(document: Document) -> str:
    way = document["trials"].get("which way", {})
    facts = [_gpu(document), f"PyTorch {way['torch']}" if "torch" in way else "", _mpi(document), document["date"]]
    return ", ".join(fact for fact in facts if fact) + ". Ranks share one GPU where there are more of them than GPUs."


def _gpu(document: Document) -> str:
    return document["trials"].get("which way", {}).get("gpu") or "processors"


def _mpi(document: Document) -> str:
    version = str(document["trials"].get("which way", {}).get("mpi", "no MPI library")).split(",")[0]
    return re.sub(r"(?: Version:)? v?(?=\d)", " ", version)


def _outcome(found: Found) -> str:
    for name in ("failed", "refused", "absent"):
        if name in found:
            return f"{_FAILED if name == 'failed' else name}: {found[name]}"
    if "operations" in found:
        outcomes = list(found["operations"].values())
        return f"{outcomes.count(_RIGHT)} of {len(outcomes)} operations right"
    figures = [f"{name} {_short(value)}" for name, value in found.items() if _is_shown(name, value)]
    return ", ".join([_RIGHT, *figures])


def _is_shown(name: str, value: Any) -> bool:
    if name in _NOT_SHOWN or not isinstance(value, float | str | dict):
        return False
    return not isinstance(value, dict) or len(value) <= _FEW


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key}: {_short(each)}" for key, each in value.items()) + ")"
    return str(value)


def main() -> None:
    """Write the files."""
    for file, text in published().items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
