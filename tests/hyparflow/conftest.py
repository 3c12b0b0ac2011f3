"""hyparflow in a Python that has TensorFlow, and questions to it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.workloads.ranks import python_environment

PROGRAMS = Path(__file__).parent / "programs"


class Refused(Exception):
    """What was asked raised an exception there; the message begins with its name."""


@pytest.fixture(scope="session")
def ask(stack_prefix: Callable[[str], Path]) -> Iterator[Callable[..., Any]]:
    """``ask("graph", model="tangled")``: what that function of ``programs/questions.py`` answers."""
    python = stack_prefix("tensorflow") / "bin" / "python"
    threads = dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    environment = python_environment() | threads | {"PYTHONPATH": f"{REPOSITORY / 'libs' / 'hyparflow'}:{PROGRAMS}"}
    with subprocess.Popen(
        [python, PROGRAMS / "worker.py"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        questions, answers = worker.stdin, worker.stdout

        def put(do: str, **arguments: Any) -> Any:
            print(json.dumps({"do": do} | arguments), file=questions, flush=True)
            answer = json.loads(answers.readline())
            if "error" in answer:
                raise Refused(f"{answer['error']}: {answer['message']}")
            return answer["answer"]

        yield put
        questions.close()
