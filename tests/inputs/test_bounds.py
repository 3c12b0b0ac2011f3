"""Hostile files cost a moment and little memory: each is checked in a process of its own with limits set."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_cli.inputs.source import MAX_BYTES
from tests.waiting import patience

pytestmark = pytest.mark.real

MEGABYTES = 300  # of address space beyond what the imported modules take
SECONDS = math.ceil(patience(4))  # of processor time

CHECK = f"""
import resource, sys
from pathlib import Path
from hidl_cli.inputs.problems import render
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import at_path
from hidl_cli.site.checks import RULES as site
from hidl_cli.plan.checks import RULES as workload
from hidl_cli.stack.checks import RULES as stack

taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, [taken + {MEGABYTES} * 2**20] * 2)
resource.setrlimit(resource.RLIMIT_CPU, [{SECONDS}] * 2)
for rules in (site, stack, workload):
    examined = examine(rules, at_path(rules.kind, Path(sys.argv[1])))
    assert examined.model is None
    for problem in examined.problems:
        assert len(render(problem)) < 3000
    print(len(examined.problems))
"""


def billion_laughs() -> str:
    lines = ["a0: &a0 [" + ", ".join(["ha"] * 9) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, 10)]
    return "\n".join(lines)


def filled(unit: str) -> str:
    return unit * (MAX_BYTES // len(unit.encode()))


HOSTILE = {
    "billion laughs": billion_laughs(),
    "10 MB": "a: b\n" * 2_000_000,
    "deep flow": filled("["),
    "deep mapping": filled("{a: "),
    "deep block": "\n".join(" " * depth + "a:" for depth in range(1000)),
    "many nulls": "a:\n" + filled("- \n")[:-10],
    "many lines": filled("\n"),
    "many keys": "".join(f"k{n}: 1\n" for n in range(24_000)),
    "many near misses": "".join(f"node_type{n}: 1\ndefault_partitio{n}: 1\n" for n in range(10_000)),
    "many duplicates": filled("a: b\n"),
    "many unknown node types": "partitions:\n" + "".join(f"  p{n}: {{node_type: x}}\n" for n in range(8_000)),
    "many unknown conditions": "stacks: [{when: {" + ", ".join(f"c{n}: 1" for n in range(24_000)) + "}}]",
    "many packages": "packages:\n" + "".join(f"  - p{n}: x\n" for n in range(10_000)),
    "many versions": "packages: {a: '" + ">=1," * 100_000 + "'}",
    "one long line": "name: '" + "x" * 900_000 + "'",
    "one long key": "k" * 900_000 + ": 1",
    "one long quoted key": '? "' + "k" * 900_000 + '"\n: 1',
    "one long number": "name: " + "9" * 900_000,
    "one long tag": "name: !" + "t" * 900_000 + " x",
    "one long anchor": "name: &" + "t" * 900_000 + " x\nb: *" + "u" * 90_000,
    "long regular expression": "match: {hostname: '" + "(a|b)*" * 100_000 + "'}",
    "nested regular expression": "match: {hostname: '" + "(" * 999 + "'}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_quickly_in_bounded_memory(tmp_path: Path, name: str) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_text(HOSTILE[name], encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(file)], capture_output=True, text=True, timeout=patience(60), check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert all(1 <= int(count) <= 202 for count in done.stdout.split())
