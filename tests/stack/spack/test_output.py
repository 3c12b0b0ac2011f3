"""What Spack prints is understood: packages that are done, and the first real error of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.errors import HidlError, ProcessFailed
from hidl_cli.site import hidl_cluster
from hidl_cli.stack.order import InstallStep
from hidl_cli.stack.providers.spack.call import Builds, done, explained, run
from hidl_cli.stack.providers.spack.call import failure_in as failure
from tests.waiting import until

FAILED = """\
$ /opt/spack/bin/spack -e /env fetch
==> Error: an error of an earlier command
$ /opt/spack/bin/spack -e /env install
==> Installing broken-1.0-k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq [2/3]
==> No patches needed for broken
==> Error: ProcessError: Command exited with status 2:
    'make' '-j2'

1 error found in build log:
     12    make: Entering directory '/stage'
     13    gcc -c a.c
  >> 14    a.c:3:1: error: expected ';' before 'return'

See build log for details:
  /stage/ada/spack-stage-broken-1.0-k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq/spack-build-out.txt

==> Error: Failed to install broken due to ChildError: ProcessError
"""


#: Spack 1.2 about a package whose patch does not apply.
UNPATCHED = """\
$ /opt/spack/bin/spack -e /env install
==> Installing zlib-ng-2.2.4-k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq [1/2]
==> zlib-ng: Successfully installed zlib-ng-2.2.4-k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq
==> No binary for patchy-1.0-nryebon7jwibe3vlm53e55zrdzdaqyy7 found: installing from source
==> Installing patchy-1.0-nryebon7jwibe3vlm53e55zrdzdaqyy7 [2/2]
1 out of 1 hunk FAILED -- saving rejects to file README.rej
==> Patch /repo/packages/patchy/bad.patch failed.
==> Error: ProcessError: Command exited with status 1:
    '/usr/bin/patch' '-s' '-p' '1' '-i' '/repo/packages/patchy/bad.patch' '-d' '.'
==> Error: Terminating after first install failure: ProcessError: Command exited with status 1:
    '/usr/bin/patch' '-s' '-p' '1' '-i' '/repo/packages/patchy/bad.patch' '-d' '.'
"""


def test_the_package_whose_patch_does_not_apply_is_named() -> None:
    found = failure(UNPATCHED.splitlines())
    assert (found.package, found.lines[0]) == ("patchy", "==> Patch /repo/packages/patchy/bad.patch failed.")


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("==> py-mpi4py: Successfully installed py-mpi4py-4.1.0-k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq", "py-mpi4py-4.1.0"),
        ("k7mk2zb py-mpi4py@4.1.0: finished", "py-mpi4py-4.1.0"),
        ("k7mk2zb py-mpi4py@4.1.0: build", None),
        ("==> Installing py-mpi4py-4.1.0-k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq [9/9]", None),
    ],
)
def test_a_package_is_reported_once_it_is_installed(line: str, package: str | None) -> None:
    assert done(line) == package


def test_progress_has_the_time_of_each_package_and_how_many_are_left() -> None:
    hashed = "k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq"
    lines = [
        (0.0, f"==> Installing zlib-ng-2.2.4-{hashed} [3/5]"),
        (75.4, f"==> zlib-ng: Successfully installed zlib-ng-2.2.4-{hashed}"),
        (76.0, f"==> Installing py-mpi4py-4.1.1-{hashed} [4/5]"),
        (80.0, f"==> py-mpi4py: Successfully installed py-mpi4py-4.1.1-{hashed}"),
        (81.0, "k7mk2zb cmake@3.31.0: finished"),
    ]
    builds = Builds()
    assert [said for now, line in lines if (said := builds.read(line, now))] == [
        "built zlib-ng-2.2.4 (1:15, 2 left)",
        "built py-mpi4py-4.1.1 (0:04, 1 left)",
        "built cmake-3.31.0 (0 left)",
    ]


def test_progress_has_the_time_that_is_left_by_earlier_builds() -> None:
    hashed = "k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq"
    expected = ("zlib-ng-2.2.4 takes 80", "py-mpi4py-4.1.1 takes 524", "cmake-3.31.0 takes 100")

    def said(known: int) -> list[str]:
        builds = Builds()
        lines = [f"# expected: {each} s" for each in expected[:known]]
        for number, each in enumerate(("zlib-ng-2.2.4", "py-mpi4py-4.1.1", "cmake-3.31.0"), start=1):
            name = each.rpartition("-")[0]
            lines += [f"==> Installing {each}-{hashed} [{number}/3]"]
            lines += [f"==> {name}: Successfully installed {each}-{hashed}"]
        return [found for line in lines if (found := builds.read(line, 0.0))]

    assert said(3) == [
        "built zlib-ng-2.2.4 (0:00, 2 left, about 10:24 more)",
        "built py-mpi4py-4.1.1 (0:00, 1 left, about 1:40 more)",
        "built cmake-3.31.0 (0:00, 0 left)",
    ]
    assert said(2)[0] == "built zlib-ng-2.2.4 (0:00, 2 left, at least 8:44 more)"
    assert said(1)[0] == "built zlib-ng-2.2.4 (0:00, 2 left)"


def test_the_package_that_failed_is_named() -> None:
    assert failure(FAILED.splitlines()).package == "broken"


def test_the_compilers_first_error_is_shown_before_spacks_own() -> None:
    assert failure(FAILED.splitlines()).lines[0].endswith("a.c:3:1: error: expected ';' before 'return'")


def test_the_packages_own_log_is_named() -> None:
    log = failure(FAILED.splitlines()).log
    assert log == "/stage/ada/spack-stage-broken-1.0-k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq/spack-build-out.txt"


def test_a_package_that_failed_before_it_ran_a_compiler_is_known_by_its_log() -> None:
    log = "/stage/ada/spack-stage-py-mpi4py-4.1.1-k7mk2zb3jmhkmh3f2d2hbqkaaqh2hfhq/spack-build-out.txt"
    found = failure(
        ["==> Error: NoLibrariesError: Unable to locate libraries", "See build log for details:", f"  {log}"]
    )
    assert (found.package, found.log) == ("py-mpi4py", log)


def test_what_an_earlier_command_said_does_not_count() -> None:
    assert "earlier" not in "".join(failure(FAILED.splitlines()).lines)


@pytest.mark.parametrize(
    ("client", "times"),
    [
        pytest.param("kill -KILL $$", 1, id="by another process"),
        # At the signal, and again when the client is dead.
        pytest.param("trap '' TERM; kill -TERM $PPID; while :; do sleep 1; done", 2, id="after it ignored SIGTERM"),
    ],
)
def test_a_job_is_cancelled_if_its_client_is_killed(tmp_path: Path, client: str, times: int) -> None:
    told = tmp_path / "cancelled"
    told.touch()
    cancel = ("sh", "-c", 'echo "$1" >> "$0"', str(told), "hidl-build-1")
    with pytest.raises(HidlError):
        run(InstallStep("build", ("sh", "-c", client), cancel=cancel), tmp_path / "log", doing="build")
    until(lambda: told.read_text().splitlines() == ["hidl-build-1"] * times, within=30, otherwise=told.read_text)


def test_a_build_in_an_allocation_finds_hidl_s_own_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``srun`` gets the configuration as other commands of Slurm do, which no variable of the user names."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("SLURM_CONF", "SLURM_CONF_SERVER"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "hidl" / "cluster"
    directory.mkdir(parents=True)
    (directory / hidl_cluster.SETTINGS).write_text('{"subnet": 7}')
    monkeypatch.setattr(hidl_cluster, "_DEVICES", tmp_path)
    (tmp_path / hidl_cluster.host_link(7)).mkdir()
    (tmp_path / hidl_cluster.host_link(7) / "ifalias").write_text(str(directory))

    printed = run(InstallStep("build", ("printenv", "SLURM_CONF")), tmp_path / "log", doing="build")

    assert printed.strip() == str(directory / hidl_cluster.CONFIGURATION)


def test_an_output_without_an_error_is_shown_without_part_of_a_secret(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    output = f"fetch --token 5packSecret9xK2f\n{'step ' * 98}"
    failed = ProcessFailed(["spack"], cwd=None, status=1, output=output, log=None)
    message = explained(failed, "building", tmp_path / "log").message
    assert message.endswith("step step")
    assert "cret9" not in message
