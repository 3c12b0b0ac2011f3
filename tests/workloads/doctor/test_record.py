"""``findings.json``: several writers, each thing once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hidl_workloads.doctor import record
from hidl_workloads.doctor.finding import Finding
from tests.conftest import REPOSITORY
from tests.waiting import patience

ERROR = Finding("HD041", "error", "full", "seen", "why", "fix", "n1")
INFO = Finding("HD001", "info", "alone", "seen", "why", "fix")
WRITER = """
import sys
from pathlib import Path
from hidl_workloads.doctor import record
from hidl_workloads.doctor.finding import Finding
for number in range(20):
    record.add(Path(sys.argv[1]), [Finding("HD041", "error", "t", sys.argv[2], "w", "m", str(number))])
"""


def test_what_is_new_is_reported_and_kept_the_worst_first(tmp_path: Path) -> None:
    file = tmp_path / "findings.json"
    assert record.add(file, [INFO, INFO]) == [INFO]
    assert record.add(file, [INFO, ERROR]) == [ERROR]
    assert record.read(file) == [ERROR, INFO]


def test_documents_name_the_fix_as_those_of_earlier_versions() -> None:
    document = ERROR.to_json()
    assert document["mend"] == "fix"
    assert Finding.from_json(document) == ERROR


def test_a_file_that_cannot_be_understood_holds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "findings.json"
    file.write_text('{"schema": "hidl.findings/1", "findings": [{"rule": 1}]}')
    assert record.read(file) == []


def test_of_many_writers_at_once_none_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "findings.json"
    command = [sys.executable, "-c", WRITER, str(file)]
    writers = [subprocess.Popen([*command, name], cwd=REPOSITORY) for name in "abc"]
    assert [writer.wait(patience(60)) for writer in writers] == [0, 0, 0]
    assert len(record.read(file)) == 60
