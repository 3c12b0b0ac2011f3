"""What decides what comes of a build."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.stack.builds import plan
from hidl_cli.stack.lock import Lock, Package
from hidl_cli.stack.schema import Build, Source


def made(
    requires: dict[str, str] | None = None, toolkit: str = "13.2.2", objects: Sequence[str] = ()
) -> plan.PlannedBuild:
    source = Source(file="tiny-1.0.tar.gz", sha256="0" * 64, pypi="tiny")
    build = Build(name="tiny", version="1.0", source=source, requires=requires or {}, objects=list(objects))
    lock = Lock("toy", "cp311", "linux-x86_64", None, "cuda", (), (Package("cuda-toolkit", toolkit, ("0" * 64,)),))
    (found,) = plan.plan([build], lock, Path("/nowhere"))
    return found


def test_what_a_build_requires_is_of_the_version_in_the_lock_unless_it_says_another() -> None:
    build = made({"cuda-toolkit[nvcc,crt]": "", "cmake": "==3.31.6", "ninja": ""})
    assert build.recipe.requires == {"cuda-toolkit[nvcc,crt]": "==13.2.2", "cmake": "==3.31.6", "ninja": ""}
    assert made({"cuda-toolkit": ">=12"}).recipe.requires == {"cuda-toolkit": ">=12"}


def test_another_version_in_the_lock_is_another_build() -> None:
    assert made({"cuda-toolkit": ""}).digest != made({"cuda-toolkit": ""}, toolkit="13.3.0").digest
    assert made({"cuda-toolkit": ">=12"}).digest == made({"cuda-toolkit": ">=12"}, toolkit="13.3.0").digest


def test_what_an_object_holds_decides_and_the_users_own_comes_first(config: Path) -> None:
    shipped = made(objects=["cuda_driver.c"])
    own = config / "objects" / "cuda_driver.c"
    own.parent.mkdir(parents=True)
    own.write_text("int one;")
    first = made(objects=["cuda_driver.c"])
    own.write_text("int two;")
    assert first.objects[0].file == own
    assert len({made().digest, shipped.digest, first.digest, made(objects=["cuda_driver.c"]).digest}) == 4


def test_an_object_that_is_not_there_is_an_error(config: Path) -> None:
    with pytest.raises(InvalidInput, match=r"object drivr.c of tiny 1.0 not found"):
        made(objects=["drivr.c"])
