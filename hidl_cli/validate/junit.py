"""JUnit's XML, for continuous integration: a case that is inconclusive has not passed there either."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from hidl_cli.documents import write_text
from hidl_cli.redaction import shown
from hidl_cli.validate.judge import Case


def write(path: Path, cases: Sequence[Case], *, name: str) -> None:
    """Write the cases as one test suite called ``name``; failures carry verdict, reason, next step and the run."""
    failed = [case for case in cases if case.verdict in ("fail", "inconclusive")]
    skipped = [case for case in cases if case.verdict == "skipped"]
    counts = {"tests": len(cases), "failures": len(failed), "errors": 0, "skipped": len(skipped)}
    suite = ET.Element(
        "testsuite",
        {"name": name, "time": f"{sum(case.seconds for case in cases):.3f}", **{k: str(v) for k, v in counts.items()}},
    )
    for case in cases:
        element = ET.SubElement(
            suite, "testcase", {"classname": case.place, "name": case.name, "time": f"{case.seconds:.3f}"}
        )
        if case.verdict in ("fail", "inconclusive"):
            failure = ET.SubElement(element, "failure", {"type": case.verdict, "message": _text(case.reason)})
            failure.text = _text("\n".join(part for part in (case.reason, case.hint, case.directory) if part))
        elif case.verdict == "skipped":
            ET.SubElement(element, "skipped", {"message": _text(case.reason)})
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    write_text(path, ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def _text(text: str) -> str:
    """``text`` without secrets and the control characters that XML 1.0 has no way to write."""
    return "".join(c if c in "\n\t" or c.isprintable() else "?" for c in shown(text))
