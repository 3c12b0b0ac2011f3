"""The page of what of Keras trains in partitions: ``make keras-table`` runs all of it and writes the page.

``python -m tests.hyparflow.tables.page PREFIX [NAME...]``; PREFIX is an installation of the stack tensorflow. With
names (``layers.Dense``, or ``layers`` for all of them) only these run, and the rest of the page stays.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.workloads import ranks

PAGE = ranks.REPOSITORY / "docs" / "reference" / "hyparflow-keras.md"
PROGRAMS = Path(__file__).parent / "programs"
OUTCOMES = ("equal", "refused", "wrong", "undecided", "not trained", "not run")
_ROW = re.compile(r"^\| `([\w.]+)` \| ([\w ]+) \| (.*) \|$", re.MULTILINE)
_HEAD = """\
# Keras features in two partitions

Every public layer, optimizer, loss, metric, regularizer, constraint, initializer, callback and application of Keras
{version}, trained in two partitions and compared with plain `fit`, `evaluate` and `predict` in one process, with the
same model, data and seed in float64. `make keras-table` runs them and writes this page. Names are those of Keras'
public modules.

- **equal**: losses, metrics, predictions and all weights after `fit` differ by less than 1e-9 (relative to values
  above 1) on both ranks. The largest difference is given. It is not 0 because the parts of a model are compiled
  separately, and micro-batches are summed in another order. Keras computes `CTC` in float32 (1e-6 here), and features
  that it cannot compute in float64 are trained in float32 (1e-5).
- **refused**: an error before training, the same on both ranks, with the reason.
- **wrong**: different results, another error, or a rank that exited.
- **undecided**: an application whose results in Keras change about as much if the last bit of its images changes.
- **not trained**: a base class, a feature that requires another framework, or one that fails in Keras itself here.
- **not run**: not yet part of a run of the table. ConvNeXtXLarge needed more than the 23 GiB of the machine.

A layer is the last one of the first partition, so its output and its gradient are sent as messages. Layers,
callbacks, applications and losses of a whole batch (`Circle`, `Dice`, `Tversky`) have one micro-batch, all others
two. Applications train one step on eight images of their minimum size, with random weights, and are cut by the
planner.

"""


@dataclass(frozen=True)
class Row:
    """What came of a name such as ``layers.Dense``."""

    name: str
    outcome: str
    reason: str


def environment() -> dict[str, str]:
    """Of the programs."""
    path = f"{ranks.REPOSITORY / 'libs' / 'hyparflow'}:{PROGRAMS}"
    return {"PYTHONPATH": path, "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def enumerated(prefix: Path) -> tuple[str, list[str]]:
    """Keras' version, and all names in it."""
    done = ranks.run(prefix, 1, PROGRAMS / "table.py", **environment())
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)
    return found["version"], found["names"]


def run(prefix: Path, names: list[str], file: Path, timeout: float = 570) -> list[Row]:
    """What comes of the names, in as many starts as it takes: a name that ends the ranks is wrong."""
    rows: dict[str, Row] = {}
    while left := [name for name in names if name not in rows]:
        file.unlink(missing_ok=True)
        done = ranks.run(prefix, 2, PROGRAMS / "table.py", file, *left, timeout=timeout, **environment())
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        rows |= {each["name"]: Row(each["name"], each["outcome"], each["reason"]) for each in lines if "name" in each}
        begun = [each["begun"] for each in lines if "begun" in each]
        if done.status and not begun:
            raise RuntimeError(done.stdout + done.stderr)
        if begun and begun[-1] not in rows:
            rows[begun[-1]] = Row(begun[-1], "wrong", "the ranks ended")
    return [rows[name] for name in names]


def written(rows: list[Row], version: str) -> str:
    """The page."""
    parts = [_HEAD.format(version=version), *_summary(rows)]
    for module in dict.fromkeys(row.name.split(".")[0] for row in rows):
        parts.append(
            f"\n## {module.capitalize()}\n\n| name | outcome | largest difference, or reason |\n|---|---|---|\n"
        )
        parts += [
            f"| `{row.name}` | {row.outcome} | {_cell(row.reason)} |\n"
            for row in rows
            if row.name.startswith(f"{module}.")
        ]
    return "".join(parts)


def read(page: str) -> list[Row]:
    """The rows of a page."""
    return [Row(*found) for found in _ROW.findall(page)]


def share_equal(rows: list[Row]) -> float:
    """Of what can be trained and has run."""
    counts = Counter(row.outcome for row in rows)
    return counts["equal"] / sum(counts[each] for each in OUTCOMES[:4])


def _cell(text: str) -> str:
    """Without what Markdown or HTML would read."""
    return text.replace("|", "/").replace("<", "&lt;").replace("{{", "{").replace("`", "'")


def _summary(rows: list[Row]) -> list[str]:
    parts = [f"| kind | {' | '.join(OUTCOMES)} |\n|---|{'---|' * len(OUTCOMES)}\n"]
    for module in dict.fromkeys(row.name.split(".")[0] for row in rows):
        counts = Counter(row.outcome for row in rows if row.name.startswith(f"{module}."))
        parts.append(f"| {module} | {' | '.join(str(counts[each]) for each in OUTCOMES)} |\n")
    total = Counter(row.outcome for row in rows)
    parts.append(f"| all | {' | '.join(str(total[each]) for each in OUTCOMES)} |\n")
    return [*parts, f"\n{share_equal(rows):.1%} of what can be trained and has run is equal.\n"]


def main(prefix: Path, wanted: list[str]) -> None:
    """Run what is wanted, and write the page."""
    version, names = enumerated(prefix)
    known = {row.name: row for row in read(PAGE.read_text())} if PAGE.exists() else {}
    chosen = [name for name in names if not wanted or name in wanted or name.split(".")[0] in wanted]
    with tempfile.TemporaryDirectory() as place:
        known |= {row.name: row for row in run(prefix, chosen, Path(place) / "rows", timeout=12 * 3600)}
    rows = [known.get(name, Row(name, "not run", "")) for name in names]
    PAGE.write_text(written(rows, version))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
