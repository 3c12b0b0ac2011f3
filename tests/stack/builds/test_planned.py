"""What decides what comes of a build."""

from __future__ import annotations

from pathlib import Path

from hidl_cli.stack.builds import planned
from hidl_cli.stack.lock import Lock, Package
from hidl_cli.stack.schema import Build, Source


def made(requires: dict[str, str], toolkit: str = "13.2.2") -> planned.PlannedBuild:
    source = Source(file="tiny-1.0.tar.gz", sha256="0" * 64, pypi="tiny")
    build = Build(name="tiny", version="1.0", source=source, requires=requires)
    lock = Lock("toy", "cp311", "linux-x86_64", None, "cuda", (), (Package("cuda-toolkit", toolkit, ("0" * 64,)),))
    (found,) = planned.plan([build], lock, Path("/nowhere"))
    return found


def test_what_a_build_requires_is_of_the_version_in_the_lock_unless_it_says_another() -> None:
    build = made({"cuda-toolkit[nvcc,crt]": "", "cmake": "==3.31.6", "ninja": ""})
    assert build.recipe.requires == {"cuda-toolkit[nvcc,crt]": "==13.2.2", "cmake": "==3.31.6", "ninja": ""}
    assert made({"cuda-toolkit": ">=12"}).recipe.requires == {"cuda-toolkit": ">=12"}


def test_another_version_in_the_lock_is_another_build() -> None:
    assert made({"cuda-toolkit": ""}).digest != made({"cuda-toolkit": ""}, toolkit="13.3.0").digest
    assert made({"cuda-toolkit": ">=12"}).digest == made({"cuda-toolkit": ">=12"}, toolkit="13.3.0").digest
