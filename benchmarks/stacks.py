"""The stacks that benchmarks run on, by the commands that users have for them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.measure import HIDL


def hidl(*words: str) -> Any:
    """What a command of hidl, with ``--json`` among its words, says."""
    done = subprocess.run([HIDL, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"hidl {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def installed(stack: str) -> Path | None:
    """The prefix of a stack, brought to the state of this repository; None where it is not installed."""
    listed = hidl("stack", "list", "--json")
    found = any(each["name"] == stack and each["installations"] for each in listed["stacks"])
    return install(stack) if found else None


def install(stack: str) -> Path:
    """Install a stack where it is not, and return its prefix."""
    (prefix,) = (each["prefix"] for each in hidl("install", stack, "--json")["installations"])
    return Path(prefix)
