"""Stands where Spack would, to try hidl's own part: it resolves, fetches and "builds" py-mpi4py by linking one.

It shares no code with Spack and proves nothing about it. STAND_IN=<word>:<verb> makes the verb misbehave: ``fail``,
``checksum``, ``full``, ``unsigned``, ``network``, or ``hang``. What it is asked for is noted in <root>/calls.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
HASH = "k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq"
SAID = {
    "checksum": "==> Error: ChecksumError: sha256 checksum failed for mpi4py-4.1.0.tar.gz\n    Expected a but got b",
    "full": "==> Error: [Errno 28] No space left on device: '/store'",
    "unsigned": "==> Error: Failed to install py-mpi4py due to InstallError: "
    "No binary found when cache-only was specified",
    "network": "==> Error: FetchError: All fetchers failed\n    URLError: <urlopen error [Errno 111] refused>",
    "fail": (
        "==> Installing py-mpi4py-4.1.0\n  >> 14    mpi.c:3:1: error: expected ';'\nSee build log for details:\n"
        "  /stage/spack-build-out.txt\n\n==> Error: Failed to install py-mpi4py due to ChildError: make failed"
    ),
}


def main(words: list[str]) -> int:
    """Do what the verb means."""
    environment = Path(words[words.index("-e") + 1])
    verb = words[words.index("-e") + 2]
    with (ROOT / "calls").open("a") as calls:
        calls.write(f"{verb} {os.environ.get('http_proxy', '')} {os.environ.get('SPACK_DISABLE_LOCAL_CONFIG')}\n")
    kind, _, when = os.environ.get("STAND_IN", "").partition(":")
    spack = yaml.safe_load((environment / "spack.yaml").read_text())["spack"]
    store = Path(spack["config"]["install_tree"]["root"])
    if when == verb and kind == "hang":
        (ROOT / "hangs").touch()
        time.sleep(600)
    elif when == verb:
        print(SAID[kind], flush=True)
        return 1
    if verb == "concretize":
        (environment / "spack.lock").write_text(json.dumps(lock(spack)))
    elif verb == "install":
        install(spack, store)
    elif verb == "buildcache":
        cached = ROOT / "cached"
        if "push" in words:
            cached.touch()
        elif cached.exists():
            print(f"{HASH} py-mpi4py@4.1.0")
    return 0


def lock(spack: dict) -> dict:
    """A lock with py-mpi4py, and the externals of the environment."""
    specs = {HASH: {"name": "py-mpi4py", "version": "4.1.0"}}
    for name in {"mpich", "mvapich2", "python"} & set(spack["packages"]):
        (external,) = spack["packages"][name]["externals"]
        version = external["spec"].split("@")[1].split()[0]
        specs[name] = {"name": name, "version": version, "external": {"path": external["prefix"]}}
    return {"roots": [{"hash": HASH, "spec": "py-mpi4py"}], "concrete_specs": specs}


def install(spack: dict, store: Path) -> None:
    """Link the mpi4py of the MPICH's own prefix, once; then make the view."""
    built = store / "py-mpi4py-4.1.0"
    (external,) = spack["packages"]["mpich"]["externals"]
    (there,) = Path(external["prefix"]).glob("lib/python3*/site-packages/mpi4py")
    if not built.exists():
        place = built / there.parent.relative_to(external["prefix"])
        place.mkdir(parents=True)
        (place / "mpi4py").symlink_to(there)
        (built / "lib64" / place.relative_to(built / "lib")).mkdir(parents=True)  # other packages lie here
        (store / ".spack-db").mkdir()
        index = {"database": {"installs": {HASH: {"installed": True}}}}
        (store / ".spack-db" / "index.json").write_text(json.dumps(index))
        print(f"==> py-mpi4py: Successfully installed py-mpi4py-4.1.0-{HASH}", flush=True)
    view = Path(spack["view"]["default"]["root"])
    view.symlink_to(built)


begun = time.perf_counter()
status = main(sys.argv[1:])
with (ROOT / "seconds").open("a") as seconds:
    seconds.write(f"{time.perf_counter() - begun}\n")
sys.exit(status)
