"""Inside a job: read from the output of the round that has ended what ``hidl_workloads.enough`` decides by.

::

    python -m hidl_cli.runs.found RUN_DIRECTORY ROUNDS_DONE

For programs that leave no ``metrics.json``: their metrics are found in their output by patterns or a parser, as after
the run. Leaves ``found.json`` beside each output. hidl's own Python runs it; ends with 1 where something is missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hidl_cli.documents import write_json
from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import plan_of
from hidl_cli.record.run import Run
from hidl_cli.runs.measured import directories, metrics_of

FOUND = "found.json"


def main(words: list[str]) -> int:
    """Read the round's steps; returns the exit status."""
    run, done = Run(Path(words[0])), int(words[1])
    try:
        plan = plan_of(run)
        for number, step in enumerate(plan.steps, start=1):
            if step.repetition != done:
                continue
            for place in directories(run.directory / "steps" / str(number), step):
                values = metrics_of(place, plan, step).items()
                write_json(place / FOUND, {"metrics": [{"name": n, "value": each["value"]} for n, each in values]})
    except (HidlError, OSError, ValueError) as error:
        print(f"hidl: cannot determine whether the study is settled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
