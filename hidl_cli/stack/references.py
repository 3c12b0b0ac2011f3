"""Direct references, which name a git repository, an archive or a directory instead of a package on an index.

Stacks contain references that are locked to a commit or a SHA-256. Each is built once as a wheel. The wheel is kept in
the user's data directory, and the lockfile contains its hash.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from uv import find_uv_bin

from hidl_cli import documents, paths, process
from hidl_cli.documents import sha256
from hidl_cli.errors import BuildFailed, MissingPrecondition, ProcessFailed
from hidl_cli.redaction import redact, remember
from hidl_cli.stack import pip_settings
from hidl_cli.stack.schema import UnusableRequirement, applies, split_hashes

if TYPE_CHECKING:
    from hidl_cli.stack.pip_settings import Sources

_LOCAL = re.compile(r"(?P<path>[^\[;]+?)(?P<extras>\[[^\]]*\])?\s*(?P<marker>;.*)?")
_EGG = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[^\]]*\])?")
_GIT = re.compile(r"git\+(?P<url>[a-z+]+://(?:[^/\s]*@)?[^\s#@]*)(?:@(?P<revision>[^@#\s]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: The user and the password, which may contain an @.
_AUTHORITY = re.compile(r"(?<=://)[^/?#\s]*@")
#: A token in the path of an index, as in conda's URLs.
_PATH_TOKEN = re.compile(r"/t/[^/]{8,}")
#: Credentials that a URL may contain: references to variables, optionally after a user name.
_PERMITTED_USER = re.compile(r"(\$\{\w+\}|[\w.-]*:\$\{\w+\}|\$\{\w+\}:\$\{\w+\})@")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
#: Files that are created when a package is built or used, and are not part of its content.
_IGNORED = re.compile(r"__pycache__|\.git|\.\w+_cache|.*\.egg-info|.*\.pyc")
#: Directories that tools create beside a project's packages.
_IGNORED_IN_PROJECT = re.compile(r"\.?venv|build|dist|\.tox|\.nox|node_modules")
#: Timestamp of the files in wheels (1980-01-01), so that the same source yields the same wheel.
_EPOCH = "315532800"


@dataclass(frozen=True)
class ReferenceBuilder:
    """Locks and builds direct references with the user's index settings.

    Attributes:
        sources: Package indexes and directories for build requirements.
        environ: The user's environment.
        interpreter: Python interpreter that the wheels are for.
        tag: Tag of this interpreter and the platform, such as ``cp311-linux-x86_64``.
        offline: Do not use the network.
        markers: Values of environment markers (default: those of this Python).
    """

    sources: Sources
    environ: Mapping[str, str]
    interpreter: Path
    tag: str
    offline: bool = False
    markers: Mapping[str, str] = field(default_factory=dict)

    def lock(self, text: str, directory: Path) -> str | None:
        """Return the reference with the name of its package, locked to a commit or a SHA-256.

        Returns None if the reference's marker does not apply.

        Args:
            text: A URL, a path or ``name @ URL``, with extras and a marker.
            directory: Directory that paths are relative to.

        Raises:
            UnusableRequirement: The reference is invalid, its credentials cannot be removed, or its content has a hash
                that differs from the one that the user specified.
            BuildFailed: The package cannot be built.
        """
        word, hashes = split_hashes(text)
        name, extras, url, marker = _parts(word, directory)
        try:
            if not applies(marker, self.markers):
                return None
        except ValueError:
            raise UnusableRequirement(f"invalid marker {marker!r}", "a marker (PEP 508)") from None
        url, fragment = _split_fragment(url)
        kept, full = without_credentials(url), expand(url, self.environ)
        if git := _GIT.fullmatch(full):
            _check_fragment(url, fragment, hashes, known=("egg", "subdirectory"))
            subdirectory = _subdirectory(fragment, "#")
            rest = f"@{self._commit(name, full + subdirectory, git['revision'])}{subdirectory}"
            locked, full = f"{_without_revision(kept)}{rest}", f"git+{git['url']}{rest}"
        elif url.startswith("file:") and (place := _path_of(url)).is_dir():
            _check_fragment(url, fragment, hashes, known=("egg", "tree-sha256"))
            digest = hash_files(place)
            _check_digest(url, fragment, hashes, digest)
            locked = full = f"{url}#tree-sha256={digest}"
        elif url.startswith(("file:", "http:", "https:")):
            _check_fragment(url, fragment, hashes, known=("egg", "subdirectory", "sha256"))
            is_file = url.startswith("file:")
            digest = sha256(_path_of(url)) if is_file else self._archive(name, full + _subdirectory(fragment, "#"))
            _check_digest(url, fragment, hashes, digest)
            rest = f"#sha256={digest}{_subdirectory(fragment, '&')}"
            locked, full = f"{kept}{rest}", f"{full}{rest}"
        else:
            raise UnusableRequirement(f"unsupported URL {redact(url)}", "git+https://, git+ssh://, https:// or a path")
        wheel = self.wheel(locked, name or "", full=full)
        found = name_of_wheel(wheel)
        if name and canonicalize_name(name) != found:
            raise UnusableRequirement(f"{redact(url)} is the package {found}, not {name}", f"{found} @ URL")
        return f"{found}{extras} @ {locked}{f' ; {marker}' if marker else ''}"

    def wheel(self, url: str, name: str, *, full: str | None = None) -> Path:
        """Return the wheel for a locked URL. It is built on first use and then kept.

        Args:
            url: The locked URL.
            name: Name of the package, if known.
            full: The URL with the user's credentials (default: ``url`` with its variables replaced).

        Raises:
            MissingPrecondition: The wheel must be built, but the source is missing or has changed, or the build is
                offline.
            BuildFailed: The build failed.
        """
        place = paths.user_data() / "wheels" / hashlib.sha256(f"{self.tag} {url}".encode()).hexdigest()[:16]
        if existing := next(iter(place.glob("*.whl")), None):
            return existing
        if self.offline and not url.startswith("file:"):
            raise MissingPrecondition(
                f"{redact(url)} has not been built here, and building it requires the network", hint="omit --offline"
            )
        with paths.temporary_directory("wheel") as temporary:
            out = Path(temporary, "out")
            out.mkdir()
            self._build(full or expand(url, self.environ), name, out, Path(temporary, "source"))
            wheels = sorted(out.glob("*.whl"))
            if len(wheels) != 1:
                raise BuildFailed(f"the build of {redact(url)} yields {len(wheels)} wheels instead of one")
            place.parent.mkdir(parents=True, exist_ok=True)
            beside = place.with_name(f".{place.name}-{os.getpid()}")
            shutil.copytree(out, beside)
            documents.write_text(beside / "origin", f"{url}\n")
            with suppress(OSError):  # another process has built the wheel in the meantime
                beside.rename(place)
            shutil.rmtree(beside, ignore_errors=True)
        return next(iter(place.glob("*.whl")))

    def _build(self, url: str, name: str, out: Path, copy: Path) -> None:
        place = _path_of(url) if url.startswith("file:") else None
        if place is None:
            self._pip_wheel(name, url, out)
            return
        _, fragment = _split_fragment(url)
        if not place.exists():
            raise MissingPrecondition(f"{place} not found", hint="restore it, or define the stack again")
        if place.is_dir():
            if hash_files(place) != fragment.get("tree-sha256"):
                raise MissingPrecondition(
                    f"{place} has changed since the stack was defined",
                    hint="to install its current content, rerun the command in the first line of the stack's file",
                )
            copy_files(place, copy)
            arguments = ["build", "--wheel", "--out-dir", str(out), "--python", str(self.interpreter), str(copy)]
            self._run([find_uv_bin(), *arguments, *(["--offline"] if self.offline else [])], place)
        elif sha256(place) != fragment.get("sha256"):
            raise MissingPrecondition(f"{place} has changed since the stack was defined", hint="define it again")
        elif place.suffix == ".whl":
            shutil.copy(place, out)
        else:
            self._pip_wheel(name, url, out)

    def _pip_wheel(self, name: str, url: str, out: Path) -> None:
        file = out.with_name("requirement.txt")
        login = self._write_requirement(file, name, url)
        run = ("run", "--no-project", "--isolated", "--python", str(self.interpreter), "--with", "pip", "--")
        pip = ("python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out), "-r", str(file))
        self._run([find_uv_bin(), *run, *pip], url, login)

    def _commit(self, name: str | None, url: str, revision: str | None) -> str:
        """Return the commit that a git URL refers to."""
        if revision and _COMMIT.fullmatch(revision):
            return revision
        return str(self._resolve(name, url)["vcs"]["commit-id"])

    def _archive(self, name: str | None, url: str) -> str:
        """Return the SHA-256 of the archive that a URL refers to."""
        return str(self._resolve(name, url)["archive"]["hashes"]["sha256"])

    def _resolve(self, name: str | None, url: str) -> dict[str, Any]:
        if self.offline:
            raise MissingPrecondition(
                f"{redact(url)} is not locked, and locking it requires the network", hint="omit --offline"
            )
        with paths.temporary_directory("reference") as directory:
            file = Path(directory, "requirement.in")
            login = self._write_requirement(file, name, url)
            options = ("--no-deps", "--no-header", "--no-annotate", "--format", "pylock.toml")
            output = self._run(
                [find_uv_bin(), "pip", "compile", str(file), *options, "--python", str(self.interpreter)], url, login
            )
        packages: list[dict[str, Any]] = read_toml(output)["packages"]
        return packages[0]

    def _write_requirement(self, file: Path, name: str | None, url: str) -> dict[str, str]:
        """Write a requirement for pip or uv without its git credentials; return variables that pass them to git.

        pip and uv would pass credentials to git as part of the URL, but other users can read the command line of git.
        """
        plain, login = _git_login(url, self.environ)
        documents.write_text(file, f"{f'{name} @ ' if name else ''}{plain}\n", mode=0o600)
        return login

    def _run(self, argv: list[str], what: str | Path, login: Mapping[str, str] | None = None) -> str:
        variables = {
            **pip_settings.uv_variables(self.sources, self.environ),
            **pip_settings.pip_variables(self.sources, self.environ),
            "SOURCE_DATE_EPOCH": _EPOCH,
            "GIT_TERMINAL_PROMPT": "0",
            **(login or {}),
        }
        environment = pip_settings.environment(variables, self.environ)
        try:
            return process.run(argv, cwd=Path("/"), env=environment).stdout
        except ProcessFailed as failure:
            lines = [line for line in redact(failure.output).splitlines() if line.strip()]
            raise BuildFailed(
                "\n".join([f"failed to build {redact(str(what))}", *(f"  {line}" for line in lines[-20:])]),
                hint="if the build needs packages of the stack (such as torch), build a wheel with `hidl stack exec "
                "STACK -- uv build --wheel --no-build-isolation`, and add its file with --with",
            ) from failure


def is_direct(text: str) -> bool:
    """Return True if the requirement names a URL or a path instead of a package on an index."""
    word = re.split(r"\s--hash\b", text)[0].partition(";")[0].strip()
    head, at, rest = word.partition("@")
    if at and re.fullmatch(r"[A-Za-z0-9][\w.-]*\s*(\[[^\]]*\])?\s*", head) and ("://" in rest or "file:" in rest):
        return True
    return "://" in word or re.match(r"\.{0,2}/|~|\.{1,2}(\[|$)", word) is not None or _is_archive(word)


def name_of_wheel(wheel: Path) -> str:
    """Return the normalized name of a wheel's package."""
    return canonicalize_name(wheel.name.partition("-")[0])


def version_of_wheel(wheel: Path) -> str:
    """Return the version of a wheel's package."""
    return wheel.name.split("-")[1]


def _without_revision(url: str) -> str:
    found = _GIT.fullmatch(url)
    return f"git+{found['url']}" if found else url


def _is_archive(word: str) -> bool:
    return re.fullmatch(r"[^\s<>=!~]*\.(whl|tar\.gz|zip)(\[[^\]]*\])?", word) is not None


def split(reference: str) -> tuple[str, str, str]:
    """Return the name with extras, the URL and the marker (perhaps empty) of a normalized reference."""
    head, _, rest = reference.partition(" @ ")
    url, _, marker = rest.partition(" ; ")
    return head, url, marker


def without_credentials(url: str) -> str:
    """Return the URL without credentials, except for references to variables (``${NAME}``) and the user name for ssh.

    Raises ``UnusableRequirement`` if the URL contains another secret.
    """
    user = _AUTHORITY.search(url)
    kept = url
    if user and not _PERMITTED_USER.fullmatch(user[0]):
        scheme_is_ssh = "ssh://" in url[: user.start()]
        kept = url[: user.start()] + (f"{user[0][:-1].partition(':')[0]}@" if scheme_is_ssh else "") + url[user.end() :]
        if not scheme_is_ssh or ":" in user[0]:
            remember({"url": url})
    plain = _AUTHORITY.sub("", _VARIABLE.sub("x", kept)).partition("#")[0]
    if "://" in plain.partition("://")[2] or redact(plain) != plain or "?" in plain or _PATH_TOKEN.search(plain):
        raise UnusableRequirement(
            "the URL contains a query, a token or credentials that cannot be removed",
            "${NAME} for a variable, or ~/.netrc",
        )
    return kept


def _git_login(url: str, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Remove the HTTP login from a git URL, and return the URL and the variables that give git the login instead.

    Other URLs are returned unchanged.
    """
    user = _AUTHORITY.search(url) if url.startswith(("git+http:", "git+https:")) else None
    if user is None:
        return url, {}
    plain = url[: user.start()] + url[user.end() :]
    host = plain.removeprefix("git+").partition("://")
    origin = f"{host[0]}://{host[2].partition('/')[0]}/"
    name, _, password = map(unquote, user[0][:-1].partition(":"))
    login = base64.b64encode(f"{name}:{password}".encode()).decode()
    number = int(environ.get("GIT_CONFIG_COUNT") or 0)
    return plain, {
        "GIT_CONFIG_COUNT": str(number + 1),
        f"GIT_CONFIG_KEY_{number}": f"http.{origin}.extraHeader",
        f"GIT_CONFIG_VALUE_{number}": f"Authorization: Basic {login}",
    }


def expand(url: str, environ: Mapping[str, str]) -> str:
    """Return the URL with its variables (``${NAME}``) replaced. Raises ``MissingPrecondition`` if one is not set."""
    for name in _VARIABLE.findall(url):
        if name not in environ:
            raise MissingPrecondition(f"the variable {name} in {redact(url)} is not set", hint=f"export {name}=...")
    full = _VARIABLE.sub(lambda found: environ[found[1]], url)
    if full != url:
        remember({"url": full})
    return full


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _parts(text: str, directory: Path) -> tuple[str | None, str, str, str]:
    """Split a reference, without ``--hash`` options, into its name (or None), extras, absolute URL and marker."""
    from packaging.requirements import InvalidRequirement, Requirement

    word = text.strip()
    with suppress(InvalidRequirement):
        requirement = Requirement(word)
        if requirement.url is not None:
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            return requirement.name, extras, _absolute(requirement.url, directory), str(requirement.marker or "")
    if "://" in word and not word.startswith("file:"):
        url, *rest = re.split(r"\s+;|;\s", word, maxsplit=1)  # a password may contain a semicolon
        marker = rest[0].strip() if rest else ""
        egg = _EGG.fullmatch(_split_fragment(url)[1].get("egg", ""))
        return (egg["name"], egg["extras"] or "", url, marker) if egg else (None, "", url, marker)
    found = _LOCAL.fullmatch(word)
    if found is None:
        raise UnusableRequirement(f"invalid reference {redact(word)!r}", "a URL, a path or NAME @ URL")
    path = found["path"].strip()
    url = path if path.startswith("file:") else (directory / Path(path).expanduser()).absolute().as_uri()
    return None, found["extras"] or "", _absolute(url, directory), (found["marker"] or "").removeprefix(";").strip()


def _absolute(url: str, directory: Path) -> str:
    """Return the URL. The path in a ``file:`` URL is made absolute, and must exist."""
    if not url.startswith("file:"):
        return url
    place = (directory / _path_of(url)).resolve()
    if not place.exists():
        raise UnusableRequirement(f"{place} not found", "a directory with a pyproject.toml or setup.py, or a wheel")
    if place.is_dir() and not any((place / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise UnusableRequirement(f"{place} is not a Python project", "a directory with a pyproject.toml or setup.py")
    fragment = urlsplit(url).fragment
    return f"{place.as_uri()}{f'#{fragment}' if fragment else ''}"


def _split_fragment(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its fragment, and the assignments in the fragment."""
    plain, _, fragment = url.partition("#")
    parts = (part.partition("=") for part in fragment.split("&") if part)
    return plain, {name: value for name, _, value in parts}


def _subdirectory(fragment: Mapping[str, str], sign: str) -> str:
    return f"{sign}subdirectory={fragment['subdirectory']}" if "subdirectory" in fragment else ""


def _check_fragment(url: str, fragment: Mapping[str, str], hashes: Sequence[str], *, known: Collection[str]) -> None:
    """Raise ``UnusableRequirement`` if the fragment has assignments other than the ``known`` ones.

    Values of ``--hash`` (``hashes``) are rejected if the URL does not refer to a file.
    """
    if unknown := sorted(fragment.keys() - known):
        shown = f" {unknown[0]}=" if unknown[0].isidentifier() else ""  # it may be part of a password
        raise UnusableRequirement(f"unsupported fragment{shown} in a URL", " or ".join(f"#{each}=" for each in known))
    if hashes and "sha256" not in known:
        raise UnusableRequirement(f"--hash is unsupported for {redact(url)}, which is not a file", "no --hash")


def _check_digest(url: str, fragment: Mapping[str, str], hashes: Sequence[str], digest: str) -> None:
    """Raise ``UnusableRequirement`` if the digest is not one of ``hashes``, or differs from the one in the fragment.

    A missing hash is not checked.
    """
    permitted = [{f"sha256:{value.lower()}"} for name, value in fragment.items() if name.endswith("sha256")]
    for each in (set(hashes), *permitted):
        if each and f"sha256:{digest}" not in each:
            raise UnusableRequirement(f"{redact(url)} has the hash sha256:{digest}", " or ".join(sorted(each)))


def _path_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def list_files(project: Path) -> list[Path]:
    """Return a project's files as relative paths, except those ignored by git (or by hidl if there is no repository).

    The result includes the files of submodules, and the files below links to directories inside the project. A link to
    a directory elsewhere counts as a file.
    """
    return sorted(set(_files_below(project.resolve(), Path(), (), git=True)))


def _files_below(project: Path, at: Path, above: tuple[Path, ...], *, git: bool) -> Iterator[Path]:
    """Yield the files below a directory.

    Args:
        project: Real path of the project.
        at: Relative path of the directory.
        above: Real paths of the parent directories. Links to them are not followed.
        git: List the files with git, even if the directory is not the top of a repository.
    """
    place = (project / at).resolve()
    if place in above:
        return
    listed = _listed_by_git(place) if git or (place / ".git").exists() else []
    for name in listed or [Path(each.name) for each in place.iterdir() if not _is_ignored(each, is_top=not at.parts)]:
        entry = project / at / name
        if entry.is_file() or (entry.is_dir() and entry.is_symlink() and not entry.resolve().is_relative_to(project)):
            yield at / name
        elif entry.is_dir():
            yield from _files_below(project, at / name, (*above, place), git=bool(listed))


def _listed_by_git(directory: Path) -> list[Path]:
    """Return the files, submodules and links that git does not ignore, or an empty list outside of a repository."""
    options = ("--cached", "--others", "--exclude-standard", "-z", ".")
    if not shutil.which("git"):
        return []
    found = process.run(["git", "-C", str(directory), "ls-files", *options], check=False)
    return [Path(name) for name in found.stdout.split("\0") if name] if found.status == 0 else []


def _is_ignored(entry: Path, *, is_top: bool) -> bool:
    if is_top and _IGNORED_IN_PROJECT.fullmatch(entry.name) and entry.is_dir():
        return not (entry / "__init__.py").exists()
    return _IGNORED.fullmatch(entry.name) is not None


def hash_files(project: Path) -> str:
    """Return the SHA-256 of the names and contents of a project's files."""
    total = hashlib.sha256()
    for file in list_files(project):
        path = project / file
        if path.is_dir():
            total.update(f"{file.as_posix()}\0l{path.resolve()}\n".encode())
        else:
            executable = "x" if os.access(path, os.X_OK) else "-"
            total.update(f"{file.as_posix()}\0{executable}{sha256(path)}\n".encode())
    return total.hexdigest()


def copy_files(project: Path, to: Path) -> None:
    """Copy a project's files, so that a build changes nothing in the project.

    The history is copied too, because some build backends read the version from git.
    """
    if (project / ".git").exists():
        clone = process.run(["git", "clone", "-q", "--local", "--no-checkout", str(project), str(to)], check=False)
        if clone.status == 0:
            process.run(["git", "-C", str(to), "reset", "-q"], check=False)
    for file in list_files(project):
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        if (project / file).is_dir():
            (to / file).symlink_to((project / file).resolve())
        else:
            shutil.copy2(project / file, to / file)
