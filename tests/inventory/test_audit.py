"""Installations against published vulnerabilities."""

from __future__ import annotations

import json
from pathlib import Path

from hidl_cli.inventory.audit import audit
from tests.inventory.made import BUILD, installation
from tests.inventory.test_osv import record

HANDLED = [{"id": "CVE-2024-10190", "text": "elastic mode is off", "url": "https://example.org"}]


def advisories(directory: Path, *documents: object) -> Path:
    file = directory / "osv.json"
    file.write_text(json.dumps(documents))
    return file


def test_what_hidl_ships_and_what_is_brought_along_are_both_found(tmp_path: Path) -> None:
    made = installation(tmp_path / "a", {"numpy": "2.4.6", "torch": "2.5.0+cpu"})
    file = advisories(tmp_path, record([{"introduced": "2"}, {"fixed": "2.4.7"}], "NumPy", summary="a flaw"))
    (found,) = audit([made], [file])
    told = {(each.package, each.id): each for each in found}
    numpy = told["numpy", "PYSEC-2026-1"]
    assert (numpy.version, numpy.text, numpy.advice) == ("2.4.6", "a flaw", "numpy 2.4.7 or newer")
    assert ("torch", "CVE-2025-32434") in told  # shipped: torch before 2.6


def test_one_vulnerability_of_two_databases_is_told_once(tmp_path: Path) -> None:
    made = installation(tmp_path / "a", {"torch": "2.5.0"})
    everything = [{"introduced": "0"}, {"fixed": "2.6.0"}]
    file = advisories(
        tmp_path,
        record(everything, "torch", id="PYSEC-2025-41", aliases=["CVE-2025-32434", "GHSA-53q9-r3pm-6pq6"]),
        record(
            everything,
            "torch",
            id="GHSA-53q9-r3pm-6pq6",
            aliases=["CVE-2025-32434"],
            database_specific={"severity": "HIGH"},
        ),
    )
    (found,) = audit([made], [file])
    (one,) = (each for each in found if "CVE-2025-32434" in (each.id, *each.aliases))
    assert (one.id, one.severity, one.fixed) == ("PYSEC-2025-41", "high", "2.6.0")


def test_what_the_recipe_has_dealt_with_or_the_user_ignores_does_not_count(tmp_path: Path) -> None:
    made = installation(tmp_path / "a", {"horovod": "0.28.1"}, builds=[BUILD], advisories=HANDLED)
    plain = installation(tmp_path / "b", {"horovod": "0.28.1"}, builds=[BUILD])
    handled, counted = audit([made, plain])
    assert [(each.id, each.handled) for each in handled] == [("CVE-2024-10190", "elastic mode is off")]
    assert [(each.id, each.handled) for each in counted] == [("CVE-2024-10190", None)]
    ((ignored,),) = audit([plain], ignored=["CVE-2024-10190"])
    assert ignored.handled == "ignored (--ignore)"


def test_what_counts_comes_first(tmp_path: Path) -> None:
    made = installation(tmp_path / "a", {"dask": "2020.1", "torch": "2.5.0"})
    (found,) = audit([made])
    ids = [each.id for each in found]
    ((first, *_),) = audit([made], ignored=ids[:-1])
    assert first.id == ids[-1]
