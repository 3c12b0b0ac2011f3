"""Rules about what leaks into a stack's Python, on recorded facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.rules.python import RULES, Python, SearchedDirectory, probe
from hidl_cli.site.probes.host import ThisHost
from tests.doctor.cases import Case, has_both_ways, named, severity
from tests.doctor.machines import context, installed, local

CLOSED = "include-system-site-packages = false\n"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A stack of Python 3.11 with NumPy and a module."""
    packages = tmp_path / "stack" / "lib" / "python3.11" / "site-packages"
    for name in ("numpy", "numpy-2.4.6.dist-info", "__pycache__"):
        (packages / name).mkdir(parents=True)
    (packages / "six.py").touch()
    (tmp_path / "stack" / "pyvenv.cfg").write_text(CLOSED)
    return tmp_path / "stack"


def shell(prefix: Path, **variables: str) -> Context:
    """A shell that has the stack activated."""
    machine = ThisHost(environment={"VIRTUAL_ENV": str(prefix), "HOME": str(prefix.parent), **variables})
    return context(machine, installation=installed(prefix))


def holding(directory: Path, *names: str) -> str:
    for name in names:
        (directory / name).mkdir(parents=True)
    return str(directory)


def test_packages_that_the_stack_has_too(prefix: Path, tmp_path: Path) -> None:
    theirs = holding(tmp_path / "theirs", "numpy", "numpy-1.26.0.dist-info", "mine")
    assert probe(shell(prefix, PYTHONPATH=theirs)).shell == (SearchedDirectory(theirs, ("numpy",)),)


@pytest.mark.parametrize("file", ["six.py", "six.cpython-39-x86_64-linux-gnu.so", "json.py"])
def test_modules_that_the_stack_or_python_has_too(prefix: Path, tmp_path: Path, file: str) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / file).touch()
    found = probe(shell(prefix, PYTHONPATH=str(tmp_path / "theirs"))).shell
    assert found[0].shadows == (file.partition(".")[0],)


def test_a_directory_of_another_python(prefix: Path, tmp_path: Path) -> None:
    theirs = holding(tmp_path / "lib" / "python3.9" / "site-packages", "mine")
    assert probe(shell(prefix, PYTHONPATH=theirs)).shell == (SearchedDirectory(theirs, (), "3.9"),)


def test_directories_that_are_empty_or_not_there_do_no_harm(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert probe(shell(prefix, PYTHONPATH=f"{tmp_path}/empty::/nowhere")) == Python("mpi", "3.11")


def test_what_activation_unsets_is_not_a_leak(prefix: Path, tmp_path: Path) -> None:
    theirs = holding(tmp_path / "theirs", "numpy")
    assert probe(shell(prefix, PYTHONPATH=theirs, VIRTUAL_ENV="")).shell == ()


def test_what_the_site_gives_to_jobs_is_one(prefix: Path, tmp_path: Path) -> None:
    theirs = holding(tmp_path / "theirs", "numpy")
    site = local(policies={"environment": {"PYTHONPATH": theirs}})
    assert probe(context(ThisHost(environment={}), site, installed(prefix))).configured == (
        SearchedDirectory(theirs, ("numpy",)),
    )


@pytest.mark.parametrize(
    ("settings", "variables", "is_seen"),
    [
        (CLOSED, {}, False),
        ("include-system-site-packages = true\n", {}, True),
        ("", {}, True),
        ("", {"PYTHONNOUSERSITE": "1"}, False),
    ],
    ids=["a venv of its own", "a venv with the system's", "no venv", "it is switched off"],
)
def test_the_users_packages_are_seen(prefix: Path, settings: str, variables: dict[str, str], is_seen: bool) -> None:
    (prefix / "pyvenv.cfg").write_text(settings)
    user = holding(prefix.parent / ".local" / "lib" / "python3.11" / "site-packages", "numpy")
    assert probe(shell(prefix, **variables)).user_site == (
        SearchedDirectory(user, ("numpy",), "3.11") if is_seen else None
    )


def test_without_an_installation_nothing_is_known() -> None:
    assert probe(context(ThisHost(environment={"PYTHONPATH": "/usr/lib"}))) == Python()


USER = "/home/a/.local/lib/python3.11/site-packages"
OTHER = "/opt/anaconda/lib/python3.9/site-packages"

CASES: list[Case] = [
    (
        "HD063",
        "it has what the stack has",
        Python("mpi", "3.11", user_site=SearchedDirectory(USER, ("numpy",), "3.11")),
        "error",
    ),
    ("HD063", "it has other things", Python("mpi", "3.11", user_site=SearchedDirectory(USER, (), "3.11")), "info"),
    ("HD063", "it is not seen", Python("mpi", "3.11"), None),
    ("HD064", "another NumPy", Python("mpi", "3.11", shell=(SearchedDirectory("/home/a/lib", ("numpy",)),)), "error"),
    (
        "HD064",
        "of the site's file",
        Python("mpi", "3.11", configured=(SearchedDirectory("/opt/lib", ("mpi4py",)),)),
        "error",
    ),
    ("HD064", "of another Python", Python("mpi", "3.11", shell=(SearchedDirectory(OTHER, (), "3.9"),)), "error"),
    ("HD064", "the user's own modules", Python("mpi", "3.11", shell=(SearchedDirectory("/home/a/code"),)), "info"),
    ("HD064", "none", Python("mpi", "3.11"), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(RULES, CASES)


def test_of_many_modules_some_are_named_and_the_others_counted() -> None:
    shadows = tuple(f"module{number}" for number in range(40))
    (finding,) = RULES.findings(Python("mpi", "3.11", shell=(SearchedDirectory("/home/a/lib", shadows),)))
    assert "module5 and 34 more" in finding.seen
