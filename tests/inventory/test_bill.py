"""The software bill of materials, held against CycloneDX's own schema."""

from __future__ import annotations

import json
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from hidl_cli.inventory import cyclonedx
from tests.inventory.made import BUILD, PATCH, SOURCE, WHEEL, distribution, installation


def test_a_bill_is_valid_and_the_same_each_time(tmp_path: Path) -> None:
    distribution(tmp_path, "numpy", "License-Expression: BSD-3-Clause AND MIT")
    distribution(tmp_path, "mpich", "License: a name of its own")
    spack = {"hashes": {"zlib": "def"}, "externals": {}, "repositories": {"builtin": "f00"}}
    packages = {"mpich": "5.0.2", "numpy": "2.4.6", "torch": "2.13.0+cpu", "zlib": "1.3"}
    made = installation(tmp_path, packages, builds=[BUILD, BUILD | {"name": "osu", "kind": "autotools"}], spack=spack)
    text = cyclonedx(made)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert cyclonedx(made) == text
    assert '"purl": "pkg:generic/osu@0.28.1"' in text


def test_a_bill_names_hashes_licenses_patches_and_what_it_is_of(tmp_path: Path) -> None:
    distribution(tmp_path, "numpy", "License-Expression: BSD-3-Clause AND MIT")
    bill = json.loads(cyclonedx(installation(tmp_path, builds=[BUILD])))
    entries = {entry["purl"]: entry for entry in bill["components"]}
    assert set(entries) == {
        "pkg:pypi/horovod@0.28.1",
        "pkg:pypi/mpich@5.0.2",
        "pkg:pypi/numpy@2.4.6",
        "pkg:generic/hidl-workloads@0.1.0",
    }
    assert entries["pkg:pypi/mpich@5.0.2"]["hashes"] == [{"alg": "SHA-256", "content": WHEEL}]
    assert "hashes" not in entries["pkg:pypi/numpy@2.4.6"]  # either of its two wheels may be there
    assert entries["pkg:pypi/numpy@2.4.6"]["licenses"] == [{"expression": "BSD-3-Clause AND MIT"}]
    (patch,) = entries["pkg:pypi/horovod@0.28.1"]["pedigree"]["patches"]
    assert patch["diff"]["text"]["content"] == f"01-one.patch sha256:{PATCH}"
    assert {"name": "hidl:source-sha256", "value": SOURCE} in entries["pkg:pypi/horovod@0.28.1"]["properties"]
    stack = bill["metadata"]["component"]
    assert (stack["name"], stack["version"]) == ("mine", "0123456789ab")
    (depends,) = (each["dependsOn"] for each in bill["dependencies"] if each["ref"] == stack["bom-ref"])
    assert set(depends) == {entry["bom-ref"] for entry in bill["components"]}
