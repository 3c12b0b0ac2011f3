"""Start ranks of a module that may crash or never end, and gather what they left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_workloads import gpus, metrics
from hidl_workloads.world import EXPECTED_SIZE

Found = dict[str, Any]
"""What is known after a trial: ``failed`` with what was ``said``, ``refused`` or ``absent`` with the reason; else it
is right, and these are its figures."""

_REPOSITORY = Path(__file__).parent.parent.parent
_LAST_LINES = 12
_PATIENCE_SECONDS = 5
_THREADS = "4"  # of each rank


@dataclass(frozen=True)
class Done:
    """How ranks ended: the ``status`` of the launcher or "no end after N s", the output, rank 0's metrics document."""

    status: int | str
    output: str
    document: dict[str, Any]

    def failure(self) -> Found:
        """What is told of ranks that failed."""
        status = f"status {self.status}" if isinstance(self.status, int) else self.status
        return {"failed": status, "said": self.output.splitlines()[-_LAST_LINES:]}

    def metric(self, name: str) -> float:
        """Return a figure of the metrics document."""
        return float(next(each["value"] for each in self.document["metrics"] if each["name"] == name))


@dataclass(frozen=True)
class Launcher:
    """Starts ranks by ``mpiexec`` on ``device``: ``cuda``, or ``cpu``, which tests these programs themselves."""

    mpiexec: Sequence[str]
    device: str

    def module(self, words: Sequence[str], ranks: int, seconds: float) -> Done:
        """Run a module with its arguments on ``ranks``; each gets the device after them, and the file to write."""
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "found.json"
            return self._run([*words, self.device, str(file)], ranks, seconds, {}, file)

    def program(
        self,
        words: Sequence[str],
        ranks: int,
        seconds: float,
        *,
        on_gpu: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Done:
        """Run one of hidl's programs as ``hidl run`` does: each rank takes its GPU, or computes on processors."""
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "metrics.json"
            variables = {
                EXPECTED_SIZE: str(ranks),
                metrics.METRICS_FILE: str(file),
                gpus.DEVICE: "gpu" if on_gpu and self.device == "cuda" else "cpu",
                gpus.GPUS_PER_RANK: "1",
                **(environment or {}),
            }
            return self._run(["hidl_workloads.world", *words], ranks, seconds, variables, file)

    def _run(
        self, words: Sequence[str], ranks: int, seconds: float, environment: Mapping[str, str], file: Path
    ) -> Done:
        command = [*self.mpiexec, "-n", str(ranks), sys.executable, "-m", *words]
        path = os.pathsep.join([str(_REPOSITORY), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": _THREADS, **environment}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                status: int | str = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # which ends the ranks
                try:
                    process.wait(_PATIENCE_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                status = f"no end after {seconds:.0f} s"
            output.seek(0)
            text = output.read().decode(errors="replace")
        document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return Done(status, text, document)
