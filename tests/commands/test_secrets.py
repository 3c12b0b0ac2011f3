"""No command shows a secret: each is run, as text and as JSON, where secrets are planted wherever one can be."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from hidl_cli.commands.app import command_line
from tests.conftest import Hidl

#: Where each secret is planted.
SECRETS = {
    "option": "Opt10nPlanted9x",
    "option of two words": "$Tw0WordsPlanted8y",
    "parameter": "Par4mPlanted7z",
    "default of a parameter": "Def4ultPlanted6a",
    "password of a URL": "Ur1PassPlanted5b",
    "query of a URL": "Qu3ryPlanted4c",
    "variable of the user": "$V4riablePlanted3d",
    "variable of the site": "S1tePlanted2e",
    "index of the site": "Ind3xPlanted1f",
    "title of the stack": "St4ckPlanted0g",
    "login": "L0ginPlanted9h",
    "output of the program": "Pr1ntedPlanted8i",
}
URL = f"https://user:begins@with/{SECRETS['password of a URL']}@host/simple?token={SECRETS['query of a URL']}"
PROGRAM = f"""
import os, sys
print("started with", sys.argv[1:], flush=True)
print("export SERVICE_TOKEN={SECRETS["output of the program"]}", flush=True)
print({SECRETS["output of the program"]!r}, os.environ.get("MY_API_TOKEN"), file=sys.stderr, flush=True)
"""
#: Words that resemble secrets and are none: they stay visible.
PLAIN = ("--pad_token_id=0", "--tokenizer", "gpt2tokens", "--max_tokens=5")

#: The arguments of each command, with the placeholders of ``_names``; several lists where it does several things.
ARGUMENTS: dict[str, list[list[str]]] = {
    "bisect": [["{old}", "{bad}", "--dry-run"]],
    "cancel": [["{new}"]],
    "capsule": [["{new}", "-o", "{root}/again.zip"]],
    "cluster down": [[]],
    "cluster status": [[]],
    "config plugins": [[]],
    "config schema": [["{root}/schema"]],
    "config show": [[], ["--origin"]],
    "data make": [["images", "{root}/data", "--samples", "2"]],
    "doctor": [[], ["--site", "local"]],
    "doctor explain": [["{rule}"]],
    "doctor rules": [[]],
    "install": [["mpi", "--dry-run"], ["secretive", "--dry-run", "--offline"]],
    "logs": [["{new}"], ["{new}", "--stderr"], ["{old}"]],
    "prune": [["--dry-run"]],
    "replay": [["{capsule}", "--dry-run"]],
    "report": [["-o", "{root}/page.html"], ["-o", "{root}/2.html", "-n", "1"]],
    "results compare": [["{old}", "{bad}"]],
    "results export": [[], ["--format", "csv"]],
    "results history": [["toy"]],
    "results list": [[]],
    "results profile": [["{old}"], ["{old}", "--matrix"]],
    "results reindex": [[]],
    "results show": [["{new}"], ["{old}"]],
    "resume": [["{new}"]],
    "run": [
        ["toy", "--dry-run", "--set", "token={parameter}"],
        ["toy", "--estimate", "--set", "note={url}"],
        ["toy", "--set", "note={url}", "--matrix", "token={parameter},another-value", "--repeat", "2"],
        ["--no-mpi", "--no-check", "{own}"],
        ["--no-mpi", "--separate-ranks", "--new-job", "--dry-run", "{own}"],
        ["toy", "--set", "ranks={parameter}", "--set", "token={parameter}"],
        ["toy", "--matrix", "token={parameter},another-value", "--as-jobs", "--at-most", "1"],
    ],
    "shell": [["mpi", "--dry-run"]],
    "site check": [["local"]],
    "site detect": [[]],
    "site externals": [[]],
    "site list": [[]],
    "site new": [["drafted"]],
    "site schema": [[]],
    "site show": [["local"]],
    "stack containerize": [["mpi", "-o", "{root}/image"]],
    "stack audit": [["mpi", "--advisories", "{root}"]],
    "stack env": [["mpi"]],
    "stack list": [[]],
    "stack lock": [["mpi"]],
    "stack sbom": [["mpi"]],
    "stack show": [["mpi"], ["secretive"]],
    "stack verify": [["mpi"]],
    "status": [[], ["{new}"], ["{old}"]],
    "tuning explain": [["MV2_USE_CUDA"]],
    "tuning list": [["MV2_USE*"]],
    "tuning save": [["{new}"]],
    "validate": [["--dry-run"], ["--dry-run", "--account", "x"]],
    "workload list": [[]],
    "workload new": [["{root}/program.py", "--force"]],
    "workload schema": [[]],
    "workload show": [["toy"]],
}
#: Commands that are not run here, and why.
EXEMPT = {
    "cluster env": "requires a cluster that is up",
    "cluster login": "starts a shell",
    "cluster up": "starts Slurm",
    "rehearse": "starts Slurm, and runs the commands above",
    "stack exec": "becomes a program of the user's, which prints what it likes",
    "stack fetch": "downloads packages",
    "stack push": "requires packages that Spack has built",
    "stack rollback": "changes the stack that other tests use",
    "stack use": "changes the stack that other tests use",
    "uninstall": "removes the stack that other tests use",
}


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the name of each command, and whether it has ``--json``."""
    command = command or get_command(command_line())
    subcommands = getattr(command, "commands", {})
    for each, subcommand in subcommands.items():
        yield from commands(subcommand, f"{name} {each}".strip())
    if not subcommands or name in ARGUMENTS:
        yield name, any("--json" in parameter.opts for parameter in command.params)


def test_each_command_has_arguments_or_a_reason_to_be_left_out() -> None:
    assert sorted(name for name, _ in commands()) == sorted({**ARGUMENTS, **EXEMPT})


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    """hidl with secrets in its environment, its site, a stack and a workload."""
    hidl = hidl_with("mpi")
    hidl.environment["MY_API_TOKEN"] = SECRETS["variable of the user"]
    hidl.add_workload(
        "toy",
        "toy.py",
        parameters={
            "token": {"type": "str", "default": SECRETS["default of a parameter"]},
            "note": {"type": "str", "default": ""},
        },
        metrics={"rate": {"unit": "items/s", "better": "higher"}},
        scaling={"metric": "rate", "kind": "weak", "target": 0.8},
    )
    site = {
        "name": "local",
        "extends": "local",
        "policies": {"environment": {"SITE_SECRET": SECRETS["variable of the site"]}},
        "wheels": {"extra_index_urls": [f"https://user:{SECRETS['index of the site']}@host/simple"]},
    }
    stack = {
        "name": "secretive",
        "extends": "mpi",
        "title": f"from https://user:{SECRETS['title of the stack']}@host/",
    }
    for kind, document in (("sites", site), ("stacks", stack)):
        file = hidl.config / kind / f"{document['name']}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(document))
    (tmp_path / "program.py").write_text(PROGRAM)
    return hidl


def own_program(root: Path) -> list[str]:
    """The words of a program of the user's own that is given secrets."""
    words = ["python3", str(root / "program.py"), f"--hf-token={SECRETS['option']}"]
    words += ["--password", SECRETS["option of two words"], "-u", f"me:{SECRETS['login']}", URL, *PLAIN]
    return ["--", *words]


def leaks(text: str) -> list[str]:
    """Return where the secrets in a text were planted."""
    return [place for place, secret in SECRETS.items() if secret in text.replace("\n", "")]


def test_no_command_shows_a_secret(hidl: Hidl, tmp_path: Path) -> None:
    ran = hidl("run", "toy", "--profile", "--set", f"token={SECRETS['parameter']}", "--set", f"note={URL}")
    assert ran.returncode == 0, ran.stderr
    ran_again = hidl("run", "toy", "--set", f"token={SECRETS['parameter']}-2", "--repeat", "2")
    started = hidl("run", "--no-mpi", "--no-check", *own_program(tmp_path))
    assert started.returncode == 0, started.stderr
    old, bad, new = sorted(run.name for run in hidl.runs.iterdir())
    made = hidl("capsule", old, "-o", str(tmp_path / "capsule.zip"))
    assert made.returncode == 0, made.stderr
    names = {
        "{old}": old,
        "{bad}": bad,
        "{new}": new,
        "{root}": str(tmp_path),
        "{capsule}": str(tmp_path / "capsule.zip"),
    }
    names |= {
        "{url}": URL,
        "{parameter}": SECRETS["parameter"],
        "{rule}": hidl.json("doctor", "rules")["rules"][0]["id"],
    }
    found, usage = {}, []
    for shown in (ran, ran_again, started, made):
        if where := leaks(shown.stdout + shown.stderr):
            found[" ".join(shown.args[3:5])] = where
    for name, has_json in commands():
        for arguments in ARGUMENTS.get(name, []):
            filled = [word for each in arguments for word in _filled(each, names, tmp_path)]
            for form in [[], ["--json"]] if has_json else [[]]:
                shown = hidl(*name.split(), *form, *filled)
                label = " ".join([name, *form, *arguments])
                if "Usage: " in shown.stderr:
                    usage.append((label, shown.stderr))
                if where := leaks(shown.stdout + shown.stderr):
                    found[label] = where
                if "{own}" in arguments and not form:
                    assert "gpt2tokens" in shown.stdout + shown.stderr
    assert not usage
    assert not found
    assert not dict(readable(tmp_path / "state"))
    assert not dict(readable(tmp_path / "cache"))
    for page in ("page.html", "2.html"):
        assert not leaks((tmp_path / page).read_text())
    for capsule in ("capsule.zip", "again.zip"):
        with zipfile.ZipFile(tmp_path / capsule) as archive:
            assert not any(leaks(archive.read(name).decode(errors="replace")) for name in archive.namelist())


def readable(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the files that hold a secret and that others than their owner can read: a job needs its secrets."""
    for file in directory.rglob("*"):
        private = any(not each.stat().st_mode & 0o077 for each in (file, *file.parents) if directory in each.parents)
        if file.is_file() and not private and (where := leaks(file.read_bytes().decode(errors="replace"))):
            yield str(file.relative_to(directory)), where


def _filled(word: str, names: dict[str, str], root: Path) -> list[str]:
    if word == "{own}":
        return own_program(root)
    for name, value in names.items():
        word = word.replace(name, value)
    return [word]
