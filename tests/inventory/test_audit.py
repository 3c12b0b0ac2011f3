"""Installations against published vulnerabilities."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from hidl_cli.inventory import audit
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
    (found,) = audit([made], [file]).found
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
    (found,) = audit([made], [file]).found
    (one,) = (each for each in found if "CVE-2025-32434" in (each.id, *each.aliases))
    assert (one.id, one.severity, one.fixed) == ("PYSEC-2025-41", "high", "2.6.0")


def test_what_the_recipe_has_dealt_with_or_the_user_ignores_does_not_count(tmp_path: Path) -> None:
    made = installation(tmp_path / "a", {"horovod": "0.28.1"}, builds=[BUILD], advisories=HANDLED)
    plain = installation(tmp_path / "b", {"horovod": "0.28.1"}, builds=[BUILD])
    handled, counted = audit([made, plain]).found
    assert [(each.id, each.handled) for each in handled] == [("CVE-2024-10190", "elastic mode is off")]
    assert [(each.id, each.handled) for each in counted] == [("CVE-2024-10190", None)]
    ((ignored,),) = audit([plain], ignored=["CVE-2024-10190"]).found
    assert ignored.handled == "ignored (--ignore)"


def test_what_counts_comes_first(tmp_path: Path) -> None:
    made = installation(tmp_path / "a", {"dask": "2020.1", "torch": "2.5.0"})
    (found,) = audit([made]).found
    ids = [each.id for each in found]
    ((first, *_),) = audit([made], ignored=ids[:-1]).found
    assert first.id == ids[-1]


@pytest.mark.parametrize(
    "ranges",
    [
        [{"type": "GIT", "repo": "x", "events": [{"introduced": "0"}]}],
        [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
        [{"type": "ECOSYSTEM", "events": [{"introduced": "release-2"}, {"fixed": "2.9"}]}],
        [{"type": "ECOSYSTEM", "events": [{"fixed": "2.9"}]}],
        [],
    ],
)
def test_an_advisory_that_does_not_tell_which_versions_is_undecided(
    tmp_path: Path, ranges: list[dict[str, object]]
) -> None:
    made = installation(tmp_path / "a", {"numpy": "2.4.6"})
    document = record([], "numpy")
    document["affected"][0]["ranges"] = ranges
    result = audit([made], [advisories(tmp_path, document)])
    ((one,),) = result.found
    assert (one.id, one.undecided, one.handled) == ("PYSEC-2026-1", True, None)
    assert (result.counted, result.undecided, result.is_complete) == (0, 1, False)
    assert audit([made], [advisories(tmp_path, document)], ["PYSEC-2026-1"]).is_complete
    decided = record([{"introduced": "0"}], "numpy", id="GHSA-53q9-r3pm-6pq6", aliases=["PYSEC-2026-1"])
    decided["affected"][0]["versions"] = ["2.4.6"]
    ((merged,),) = audit([made], [advisories(tmp_path, document, decided)]).found
    assert (merged.undecided, "GHSA-53q9-r3pm-6pq6" in merged.aliases) == (False, True)


def test_files_that_were_not_read_make_an_audit_incomplete(tmp_path: Path) -> None:
    made = installation(tmp_path / "a", {"numpy": "2.4.6"})
    directory = tmp_path / "advisories"
    (directory / "sub").mkdir(parents=True)
    (directory / "a.json").write_text(json.dumps(record([{"introduced": "3"}], "numpy")))
    for name in ("README.md", "LICENSE"):
        (directory / name).write_text("")
    assert audit([made], [directory]).is_complete
    skipped = ["b.json.gz", "b.jsonl", "all.zip.part", "sub/c.tar.zst", "sub/d.csv"]
    for name in skipped:
        (directory / name).write_text("")
    (directory / "gone.json").symlink_to("nothing.json")
    (directory / "link").symlink_to(tmp_path)
    result = audit([made], [directory])
    assert set(result.unread) == {str(directory / name) for name in (*skipped, "gone.json", "link")}
    assert (result.counted, result.is_complete) == (0, False)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a.json", (directory / "a.json").read_text())
        archive.writestr("PyPI/all.zip", "")
    assert audit([made], [tmp_path / "all.zip"]).unread == [f"{tmp_path / 'all.zip'}: PyPI/all.zip"]
