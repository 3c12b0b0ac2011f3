"""Redaction: find secrets in documents, command lines and text, and hide every occurrence of them."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")


class _Pattern:
    """A regular expression that is compiled on first use.

    Compiling this module's expressions takes 50 ms, and most texts can be ruled out without them.
    """

    def __init__(self, source: str | bytes, flags: int = 0) -> None:
        self._source = source
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(self._source, self._flags), name)
        setattr(self, name, method)
        return method


#: Replacement for a secret.
HIDDEN = "***"

#: Replacement for a secret with a name: ``***HF_TOKEN***``.
_MARK = _Pattern(r"\*\*\*(?:(?P<name>[A-Z0-9_]+)\*\*\*)?")

# The match extends to the last @ before the path, query or fragment, because a password may contain an @.
_USER = _Pattern(r"(?<=://)[^\s/?#]+(?=@)")
# A password with an unquoted /, ? or #, which URLs forbid but users write: the match extends to the last @ in the word.
# An address's port is not a password, and some @ characters belong to the path: name.git@v1, :8080/@scope,
# name@sha256:1, name@1.2.
_VERSION = r"(?!\d+(?:\.\d+){3})v?\d+(?:\.\d+)*(?:[.-]?(?:a|b|rc|alpha|beta|dev|post)[.-]?\d*)?(?:[\s\"'<>,;|)]|$)"
_TO_LAST_AT = (
    r"[^\s\"'<>,;|]*(?:[,;|](?!\w[\w+.-]*://)[^\s\"'<>,;|]*)*(?<!\.git)"
    rf"(?=@(?!sha\d+:|{_VERSION}))"
)
_USER_WITH_SLASH = _Pattern(
    r"(?<=://)(?!(?:localhost|[\d.]+):\d+(?:[/?#]|$))"
    rf"[^\s/?#@:]*:(?!\d{{1,5}}(?:[/?#][^\s@]*)?/@[^\s@]*(?:@{_VERSION}|\s|$)){_TO_LAST_AT}"
)
# The same pattern for a token without a user in front of it. The text after the token's first @ is not a host.
_TOKEN_WITH_SLASH = _Pattern(
    r"(?<=://)[^\s/?#@:]+@(?!(?:(?:[\w-]+\.)+[A-Za-z]{2,}|localhost|\d+(?:\.\d+){3}|\[[\da-fA-F:.]+\]"
    r"|[\w-]+:\d{1,5}(?=[/?#]|$))(?:[:/?#]|$))"
    rf"[^\s/?#@\"'<>,;|]*[/?#]{_TO_LAST_AT}"
)
# The path of a conda index may contain a token after /t/. In the URLs of forums, /t/ is followed by a title with
# hyphens.
_PATH_TOKEN = _Pattern(
    r"://[^\s?#\"'<>]{1,200}?/t/(?P<value>(?:[a-z]{2}-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\w{16,})"
    r"(?=[/\s\"']|$)"
)
_WITH_QUERY = _Pattern(r"://[^\s?#\"'<>]*\?[^\s#\"'<>]*")
_QUERY_VALUE = _Pattern(r"(?P<name>[^&?=\s]*)=(?P<value>[^&\s]+)")
_SIGNS = _Pattern(r"(?:[a-z0-9-]*[-_])?(?:sig|signature|key|auth|code)", re.IGNORECASE)

# First parts of names such as API_KEY and DB_PASS, because KEY and PASS alone have other meanings.
_KEYS = (
    *("api", "access", "private", "auth", "signing", "encryption", "account", "shared", "storage", "subscription"),
    *("license", "deploy", "ssh", "wandb", "openai", "anthropic", "comet", "mistral", "azure"),
)
_PASSES = ("user", "db", "admin", "root", "login", "smtp", "ftp", "proxy", "mysql", "redis")
_WORDS = (
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|TOKEN(?![A-Z])|AUTHORIZATION"
    rf"|(?:{'|'.join(_KEYS).upper()})[_-]?KEY(?![A-Z])|(?:{'|'.join(_PASSES).upper()})[_-]?PASS(?![A-Z])"
    r"|[A-Z0-9]{1,60}_PWD(?![A-Z])|(?<![A-Z0-9$])(?:PASS|PWD)(?![A-Z0-9_-])"
)
# Substrings of everything that _WORDS matches, in casefolded text. Searching for them is ten times faster.
_HINTS = (
    *("password", "passwd", "passphrase", "secret", "credential", "token", "authorization", "_pwd"),
    *(f"{kind}{sign}key" for kind in _KEYS for sign in ("", "_", "-")),
    *(f"{kind}{sign}pass" for kind in _PASSES for sign in ("", "_", "-")),
)
_SHORT_HINT = _Pattern(
    r"(?<![a-z0-9${])(?:pass|pwd)(?:$|[\"'\\\]>]|\s*[+:?]?[=:])"
    r"|(?<![^\s'\"])(?:--?|setenv[ \t]+|set[ \t]+-\w+[ \t]+)(?:[\w-]*[_-])?(?:pass|pwd)[ \t\\]"
)
# PASS and PWD can also refer to a compiler pass or a directory, so a word, a short number or a path is not treated as a
# secret in these variables.
_IS_SHORT_NAME = _Pattern(r"(?:[A-Z0-9]*[_-]+)*(?:PASS|PWD)", re.IGNORECASE)
_IS_PLAIN = _Pattern(r"[a-z]+(?:[_-][a-z]+)*|[-+]?[\d.,]{1,5}|.{0,3}|(?:[~.$]|\.\.)?/.*", re.IGNORECASE | re.DOTALL)
# The length is limited because a long word that contains many of these names would take quadratic time.
_NAME = rf"[A-Z0-9_-]{{0,60}}(?:{_WORDS})[A-Z0-9_-]{{0,60}}"
_IS_NAME = _Pattern(_NAME, re.IGNORECASE)
_IS_WORD = _Pattern(_WORDS, re.IGNORECASE)
# Names that look like those of secrets but are not: terms from language models, and names of files that contain a
# secret (`pad_token_id`, `eos_token`, `HF_TOKEN_PATH`).
_IS_NO_SECRET = _Pattern(
    r"(?:^|[_-])(?:PAD|BOS|EOS|UNK|MASK|CLS|SEP|IMAGE|SPECIAL|START|END|STOP|FIRST|LAST|NEXT|PER|EACH|NUM)[_-]?TOKEN"
    r"|TOKEN[_-]?(?:IDS?|TYPES?|COUNT|LIMIT|BUDGET|LEN|LENGTH|SIZE|DROP|DROPOUT|EMBED\w*|MIX\w*|RATE|THROUGHPUT|SPEED|LATENCY|TIME|PER|ACCURACY|LOSS)(?:[_-]|$)"
    r"|[_-](?:FILE|PATH|DIR|DIRECTORY|NAME|COUNT|LIMIT|SIZE|LENGTH)$",
    re.IGNORECASE,
)
_ASSIGNED = _Pattern(rf"(?<![A-Za-z0-9_&?-])(?P<name>{_NAME})[+:?]?=", re.IGNORECASE)
_WORD_ASSIGNED = _Pattern(rf"(?:--?)?(?P<name>{_NAME})=(?P<value>.*)", re.IGNORECASE | re.DOTALL)
# `--token x`, possibly across an escaped line end; `setenv TOKEN x` and `set -gx TOKEN x` in other shells.
_OPTION = _Pattern(
    rf"(?<![^\s'\"])(?:--?|setenv[ \t]+|set[ \t]+-\w+[ \t]+)(?P<name>{_NAME})(?:[ \t]|\\\n)+(?![-\\])", re.IGNORECASE
)
_OPTION_WORD = _Pattern(rf"--?(?P<name>{_NAME})", re.IGNORECASE)
# The match ends before the word that contains the secret (_IS_LOGIN).
_LOGIN = _Pattern(r"(?<![^\s'\"])(?:-u|--user|--proxy-user|--(?:src-|dest-)?creds)(?:[ \t]+|=)(?=[\"']?[^\s:'\"]+:)")
_IS_LOGIN = _Pattern(r"[\"']?(?!https?://|\d+:\d+$)[^\s:'\"]+:(?P<value>.+)", re.DOTALL)
_AUTHORIZATION = _Pattern(
    r"\bAuthorization\\?[\"']?\s*[:=]\s*(?:\\?[\"'])?(?:Basic|Bearer|Digest|Negotiate|Token)\s+(?P<value>[^\s'\"\\]+)",
    re.IGNORECASE,
)
_SCHEME = _Pattern(r"(?:Basic|Bearer|Digest|Negotiate|Token)\s+(?P<value>\S.*)", re.IGNORECASE)
_BEARER = _Pattern(r"\bBearer\s+(?P<value>[\w.~+/=-]+)", re.IGNORECASE)
_COOKIE = _Pattern(r"\bCookie:[ \t]*(?P<value>[^'\"\n]+)", re.IGNORECASE)
# The match ends before the secret.
_PROGRAM_PASSWORD = _Pattern(
    r"\bsshpass[ \t]+-p[ \t]*"
    r"|\b(?:mysql\w*|mariadb\S*)[ \t](?:[^\n|;&]{0,200}?\s)??[\"']?-p(?=\S)"
    r"|\bredis-cli[ \t](?:[^\n|;&]{0,200}?\s)??-a[ \t]+"
    r"|\b(?:docker|podman|helm|oras|apptainer|singularity)[ \t][^\n|;&]{0,80}?\blogin[ \t]"
    r"(?:[^\n|;&]{0,200}?\s)??-p[ \t]+"
    r"|(?<![^\s'\"])-{1,2}pass(?:in|out)?(?:[ \t]+|=)[\"']?pass:"
    r"|\blogin\s+\S+\s+password\s+"
)
_PRIVATE_KEY = _Pattern(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<value>.+?)(?=-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_WEBHOOK = _Pattern(r"://hooks\.slack\.com/services/(?P<value>[^\s'\"<>]+)")
# `X-Api-Key: x`, `token = x  # why`, `setenv("TOKEN", "x")`, `["--token", "x"]`, `<token>x</token>`. The value is
# only hidden if it looks like a secret.
_BESIDE = _Pattern(
    rf"(?<![A-Za-z0-9_&?-])(?P<name>{_NAME})(?:[ \t]*(?:=|:=?)[ \t]*|\\?[\"'][ \t]*,\s*\\?[\"']|>)"
    r"(?P<value>[^\s'\"\\,;<>=][^\s'\"\\,;<>]*)",
    re.IGNORECASE,
)
_IS_QUANTITY = _Pattern(r"[-+]?[\d.,:]+(?:e[-+]?\d+)?[a-z%/]*|\d{4}-\d\d-\d\d.*|(?:[~.]|\.\.)?/.*", re.IGNORECASE)
# `{"token": "x"}`, `os.environ["TOKEN"] = "x"`, `token = 'x'`.
_QUOTED = _Pattern(
    rf"(?<![A-Za-z0-9_-])(?P<name>{_NAME})\\?[\"']?\]?\s*[:=]\s*(?P<quote>\\?[\"'])(?P<value>(?:(?!(?P=quote)).)+)"
    r"(?P=quote)",
    re.IGNORECASE,
)
_LINE = _Pattern(
    rf"^[ \t-]*(?P<name>{_NAME}):[ \t]+(?P<value>\S(?:[^\n]*?\S)??)[ \t]*(?:[ \t]#[^\n]*)?$",
    re.IGNORECASE | re.MULTILINE,
)
# A value that consists of several words, but is not the beginning of a sentence.
_IS_PASSPHRASE = _Pattern(
    r"(?!(?:the|an?|not?|is|was|for|of|your|must|required|invalid|incorrect|wrong|permission|enter|see|by)\b)"
    r"[^\n]*(?<![.?!:,])",
    re.IGNORECASE,
)
_TAKES_PASSPHRASE = _Pattern(r"PASS(?:WORD|WD|PHRASE)|SECRET", re.IGNORECASE)
_FORM_HINTS = ("hf_", "gh", "glpat-", "sk-", "AKIA", "ASIA", "xox", "eyJ", "AIza", "pypi-", "npm_")
_FORMS = _Pattern(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-(?:(?:proj|ant|or|svcacct)-(?:[a-z0-9]+-)?)?[A-Za-z0-9][\w-]{19,}|A[KS]IA[0-9A-Z]{16}|xox[abpr]-[\w-]{10,}"
    r"|eyJ[\w-]+\.eyJ[\w-]+\.[\w-]*|AIza[\w-]{35}|pypi-[\w-]{16,}|npm_[A-Za-z0-9]{36})"
)
_OTHER_HINTS = (
    *("bearer", "cookie:", "private key-----", "hooks.slack.com"),
    *("sshpass", "mysql", "mariadb", "login", "redis-cli", "pass:", "creds"),
)

# References to a secret: a file that the shell reads, a variable, or a workload placeholder.
_FILE_REFERENCE = _Pattern(r"\$\(\s*(?:cat\s|<)[^()`$]*\)|`\s*cat\s[^`]*`")
_VARIABLE_REFERENCE = _Pattern(r"\$\w+|\$\{\w+(?::?\?[^{}]*)?\}")
_PLACEHOLDER = _Pattern(r"\{(?P<name>\w+)(?:\?[^{}]+)?\}|%(?P<variable>\w+)%")
# A workload parameter with its value, in a command line or a list of assignments.
_IS_ASSIGNMENT = _Pattern(r"(?:--(?:set|matrix)=)?(?P<name>[a-z][a-z0-9_]{0,63})=.*", re.DOTALL)
_EXPANSION = _Pattern(r"\$\w+|\$\{[^{}]*\}|\$\([^()]*\)")
_NO_VALUES = frozenset({"true", "false", "yes", "no", "on", "off", "none", "null", "value", "..."})
#: Keys whose value is named by the enclosing object.
_VALUE_KEYS = frozenset({"default", "value", "values"})
#: Shell options followed by a script.
_TAKES_SCRIPT = _Pattern(r"-[a-z]*c")
#: Options and commands followed by a variable's name and value.
_SETS_VARIABLE = frozenset({"-env", "-genv", "setenv"})
#: Characters with a special meaning in a shell.
_SYNTAX = _Pattern(r"[^\w@%+=:,./#~^*?!{}\[\]<>-]")

#: The module that starts a user's program. Its words are encoded: a line end is ``%0A`` (see ``own_program.encode``).
_STARTER = "hidl_workloads.own_program"
_IS_ENCODED = _Pattern(r"(?:[^%]|%[0-9A-F]{2})*|%")
#: A word as quoted by hidl.
_QUOTED_WORD = r"(?:'[^'\n]*'|\"'\"|[^\s'\"\\$`;&|<>()]+)+"
#: The encoded words in a script that hidl has written.
_STARTED = _Pattern(rf"(?<={re.escape(_STARTER)})(?:[ \t]+{_QUOTED_WORD})+")

#: Numbers that only distinguish a line of an output from similar ones: dates, times, steps, rates.
_NUMBER = _Pattern(rb"(?<![\w.-])(?:\d{4}-\d\d-\d\d(?:T\d\d)?|\d{1,7}|\d+\.\d+(?:e[-+]?\d+)?[a-zA-Z]{0,3})(?![\w.-])")
_LINE_END = _Pattern(rb"[\r\n]")
#: Size of the blocks in which an output is searched.
_BLOCK = 1 << 20
#: Most bytes that are searched again with the next block, because the beginning or the name of a secret, such as a
#: private key, may be there.
_OVERLAP = 1 << 14
#: Most kinds of lines to remember.
_MOST_KINDS = 1 << 20

#: Shorter values are hidden where they were found, but not elsewhere.
_LEAST_WORD = 4
#: Smaller numbers are not secrets.
_LEAST_NUMBER = 1000
#: Shorter values are hidden elsewhere only as whole words.
_LEAST_PART = 8


@dataclass(frozen=True)
class _Span:
    """A secret in a text.

    Unless it is empty, ``value`` is also hidden in other places. ``parts`` contains substrings that are secrets by
    themselves.
    """

    start: int
    end: int
    name: str
    value: str
    parts: tuple[str, ...] = ()


class Secrets:
    """The secrets in a set of documents and texts.

    ``learn`` finds them; ``hide`` and ``hide_document`` replace every occurrence, including secrets that are only
    recognizable in another document.

    Args:
        named: Replace a secret with its name, such as ``***HF_TOKEN***``, which ``fill`` can restore, instead of
            ``***``.
    """

    def __init__(self, *, named: bool = False) -> None:
        self._named = named
        self._names: dict[str, str] = {}
        self._spread: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._values: dict[str, str] = {}
        self._literal: set[str] = set()
        self._parameters: set[str] = set()
        self.places: dict[str, list[str]] = {}

    def learn(self, *documents: Any) -> Secrets:
        """Find the secrets in documents and texts, and return self."""
        self._parameters.update(name for document in documents for name in _parameters_in(document))
        for document in documents:
            if self._named:
                self._literal.update(name for name in _marks_in(document) if name not in self._names.values())
            self._walk(document, "", "")
        self.places.clear()
        return self

    def learn_output(self, text: str) -> Secrets:
        """Find the secrets in a program's output, except values that could be words in a sentence."""
        text = _STARTED.sub("", text) if _STARTER in text else text  # hidl's own command lines are learned as documents
        for span in _spans(text, self._parameters):
            if len(span.value) >= _LEAST_PART and any(map(str.isdigit, span.value)):
                self._remember(span.name, span.value)
        return self

    def learn_environment(self) -> Secrets:
        """Find the secrets in this process's environment variables, which a shell may have put into command lines.

        Short values are skipped: they are probably ordinary words, and were not typed for this command.
        """
        return self.learn({name: value for name, value in os.environ.items() if len(value) >= _LEAST_PART})

    def learn_log(self, log: Path, begin: int = 0, end: int | None = None) -> Secrets:
        """Find the secrets in a program's log as ``learn_output`` does, and return self.

        Args:
            log: The file. If it cannot be read, nothing is learned.
            begin: Offset of the first line.
            end: Offset after the last byte; None if it is the end of the file.
        """
        with suppress(OSError), log.open("rb") as file:
            self.learn_blocks(_whole_lines(file, begin, end))
        return self

    def learn_blocks(self, blocks: Iterable[bytes]) -> Secrets:
        """Find the secrets in blocks of a long output as ``learn_output`` does, and return self.

        Searching takes seconds per megabyte if an output has words such as ``token``. Therefore, a line is skipped if
        it and the next one differ from earlier lines only in numbers.
        """
        kinds: set[int] = set()
        before = last_line = b""
        for block in blocks:
            if lines := _distinct_lines(last_line + block, kinds):
                text = before + lines
                self.learn_output(text.decode(errors="surrogateescape"))
                before = last_lines(text, _OVERLAP)
            last_line = (last_lines(block, _OVERLAP).splitlines(keepends=True) or [b""])[-1]
        return self

    def hide(self, text: str, where: str = "", *, literal: bool = False) -> str:
        """Return the text without secrets.

        Args:
            text: A word, a command line or any other text.
            where: The text's location, which is recorded in ``places``.
            literal: True if no shell expands the text, so that ``$NAME`` is a value.
        """
        parts, last = [], 0
        if _STARTER in text and (started := list(_STARTED.finditer(text))):
            for found in started:
                before = self.hide(text[last : found.start()], where, literal=literal)
                parts += [before, self._hide_started(found[0], where)]
                last = found.end()
            return "".join([*parts, self.hide(text[last:], where, literal=literal)])
        spans = _union([*_spans(text, self._parameters, literal=literal), *self._known(text)])
        if not spans:
            return text
        for span in spans:
            parts += [text[last : span.start], self._mark(span.name, text[span.start : span.end], span.value, where)]
            for part in span.parts:
                self._remember(span.name.replace("user", "password", 1), part)
            last = span.end
        return "".join([*parts, text[last:]])

    def hide_document(self, document: T, where: str = "") -> T:
        """Return plain data or dataclasses without secrets. ``where`` is the location recorded in ``places``."""
        self._parameters.update(_parameters_in(document))
        found: T = self._walk(document, "", where)
        return found

    def _walk(self, value: Any, name: str, where: str) -> Any:
        if isinstance(value, (str, int)) and not isinstance(value, (Enum, bool)):
            return self._leaf(value, name, where)
        if isinstance(value, Mapping):
            return {
                self.hide(key, where) if isinstance(key, str) else key: self._walk(
                    each, _name_within(value, key, each, name), f"{where}.{key}" if where else str(key)
                )
                for key, each in value.items()
            }
        if isinstance(value, (list, tuple)):
            start = value.index(_STARTER) + 1 if _STARTER in value else len(value)
            found = self._hide_words(value[:start], value[start:], name, [f"{where}[{at}]" for at in range(len(value))])
            return found if isinstance(value, list) else tuple(found)
        if is_dataclass(value) and not isinstance(value, type):
            own = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
            shown = self._walk(own, name, where)
            changed = {key: each for key, each in shown.items() if each != own[key]}
            return replace(value, **changed) if changed else value
        return value

    def _hide_started(self, line: str, where: str) -> str:
        """Return the quoted and encoded words of a user's program without secrets."""
        quoted = re.findall(_QUOTED_WORD, line)
        words = ["".join(shlex.split(word)) for word in quoted]
        hidden = self._hide_words([], words, "", [where] * len(words))
        shown = (raw if new == word else shlex.quote(new) for raw, word, new in zip(quoted, words, hidden, strict=True))
        return re.sub(_QUOTED_WORD, lambda _: next(shown), line)

    def _hide_words(self, words: Sequence[Any], encoded: Sequence[Any], name: str, places: Sequence[str]) -> list[Any]:
        """Return the elements of a list without secrets.

        Args:
            words: First elements.
            encoded: Other elements, which are encoded (see ``own_program.encode``).
            name: Name of the list.
            places: Locations of all elements.
        """
        every = [*words, *map(_decoded, encoded)]
        of_programs = _secrets_of_programs(every, self._parameters)
        found = [self._element(every, at, name, place, of_programs.get(at)) for at, place in enumerate(places)]
        for at, word in enumerate(encoded, len(words)):
            found[at] = word if found[at] == every[at] else _encoded(found[at])
        return found

    def _element(self, words: Sequence[Any], at: int, name: str, where: str, secret: _Span | None) -> Any:
        """Return a list element with its secrets hidden.

        The element may be a word in a command line that ends with a secret.
        """
        word = words[at]
        if secret:
            shown = self.hide(word[: secret.start], where)
            return shown + self._mark(secret.name, secret.value, secret.value, where)
        name = _option(words, at) or name
        assigned = None
        if isinstance(word, str) and "=" in word and _may_name(word) and not is_secret_name(name):
            assigned = _WORD_ASSIGNED.fullmatch(word)
        script = bool(at) and isinstance(words[at - 1], str) and _TAKES_SCRIPT.fullmatch(words[at - 1])
        if assigned is None or script or not self._is_secret(assigned["name"], assigned["value"]):
            is_word = isinstance(word, str) and not script and not is_secret_name(name) and not re.search(r"\s", word)
            return self.hide(word, where, literal=True) if is_word else self._walk(word, name, where)
        value = assigned["value"]
        return word[: assigned.start("value")] + self._mark(assigned["name"], value, value, where)

    def _leaf(self, value: str | int, name: str, where: str) -> str | int:
        if isinstance(value, int) and (abs(value) < _LEAST_NUMBER or not _is_secret(name, str(value))):
            return value
        text = str(value)
        if self._is_secret(name, text):
            scheme = _SCHEME.fullmatch(text) if "authorization" in name.casefold() else None
            start = scheme.start("value") if scheme else 0
            value = text[start:]
            return text[:start] + self._mark(name, value, value, where) if self._is_secret(name, value) else text
        return self.hide(text, where, literal=bool(name) and not re.search(r"\s", text))

    def _is_secret(self, name: str, value: str) -> bool:
        """Return whether an entry in a document is a secret. No shell expands variables in these entries."""
        return _is_secret(name, value, self._parameters, literal=True)

    def _mark(self, name: str, text: str, value: str, where: str) -> str:
        """Return the replacement for ``text`` and remember ``value``."""
        known = self._remember(name, value) if value else self._name(name, text)
        places = self.places.setdefault(known, [])
        if where not in places:
            places.append(where)
        return f"{HIDDEN}{known}{HIDDEN}" if self._named else HIDDEN

    def _remember(self, name: str, value: str) -> str:
        known = self._name(name, value)
        if _is_telling(value) and value not in self._spread:
            self._spread[value] = known
            self._pattern = None
        return known

    def _name(self, name: str, value: str) -> str:
        """Return a value's name: that of its option, with a number if another value already has this name."""
        if value not in self._names:
            base = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_") or "SECRET"
            base = f"SECRET_{base}" if base[0].isdigit() else base  # a variable may have this name
            taken = {*self._names.values(), *self._literal}
            numbered = (f"{base}_{number}" for number in range(2, len(taken) + 3))
            self._names[value] = base if base not in taken else next(each for each in numbered if each not in taken)
        return self._names[value]

    def _known(self, text: str) -> Iterator[_Span]:
        """Yield the spans of known values, in any form that they can take in a shell, JSON, a URL or HTML."""
        if not self._spread:
            return
        if self._pattern is None:
            parts = {part: value for value in self._spread for part in _parts(value)}
            longest_first = sorted(parts, key=len, reverse=True)
            self._values = {_in_any_notation(part): parts[part] for part in longest_first}
            self._pattern = re.compile("|".join(self._values))
        marks = [mark.span() for mark in _MARK.finditer(text)] if HIDDEN in text else []
        for found in self._pattern.finditer(text):
            if any(start <= found.start() < end for start, end in marks):
                continue
            value = next(self._values[each] for each in self._values if re.fullmatch(each, found[0]))
            yield _Span(found.start(), found.end(), self._spread[value], value)


def of_this_process() -> Secrets:
    """Return this process's secrets, found in its command line, its environment and the documents it has read."""
    return _of_process(tuple(sys.argv[1:]))


@cache
def _of_process(words: tuple[str, ...]) -> Secrets:
    return Secrets().learn(list(words)).learn_environment()


def remember(*documents: Any) -> None:
    """Find the secrets in documents and texts, and hide them in everything that this process prints from now on."""
    of_this_process().learn(*documents)


def shown(value: T) -> T:
    """Return text, plain data or dataclasses for display, hiding secrets, including those found earlier."""
    return of_this_process().hide_document(value)


def remember_log(log: Path, begin: int = 0, end: int | None = None) -> None:
    """Find the secrets in a part of a program's log, and hide them in all that this process prints from now on."""
    of_this_process().learn_log(log, begin, end)


def shown_output(text: str) -> str:
    """Return a program's output for display, without secrets, and also hide these secrets from now on."""
    return of_this_process().learn_output(text).hide(text)


def shown_end(output: str, size: int) -> str:
    """Return the last lines of a program's output for display, without secrets and with at most ``size`` bytes.

    Secrets are searched in the whole output, and also hidden from now on. A last line that is longer is cut at its
    beginning.
    """
    data = output.rstrip().encode(errors="surrogateescape")
    secrets = of_this_process().learn_blocks(_whole_lines(io.BytesIO(data), 0, None))
    end = last_lines(data, size + _OVERLAP) or data
    hidden = secrets.hide(end.decode(errors="surrogateescape"))
    lines = last_lines(hidden.encode(errors="surrogateescape"), size)
    return lines.decode(errors="surrogateescape") or hidden[-size:]


def last_lines(data: bytes, size: int) -> bytes:
    """Return the last lines of an output, with at most ``size`` bytes.

    An output that is cut within a line may begin with a part of a secret that nothing recognizes.
    """
    if len(data) <= size:
        return data
    end = data[-size - 1 :]
    line_end = _LINE_END.search(end)
    return end[line_end.end() :] if line_end else b""


def read_end(log: Path, size: int) -> bytes:
    """Return the last lines of a log, with at most ``size`` bytes."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size - 1))
        return last_lines(file.read(size + 1), size)


def _whole_lines(file: IO[bytes], begin: int, end: int | None) -> Iterator[bytes]:
    """Yield part of a log in blocks of whole lines; a longer line is split into overlapping pieces."""
    left = (file.seek(0, os.SEEK_END) if end is None else end) - begin
    file.seek(begin)
    rest = b""
    while data := file.read(max(0, min(left, _BLOCK))):
        left -= len(data)
        block = rest + data
        place = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        rest = block[place:] if place else block[-_OVERLAP:]
        yield block[: place or None]
    if rest:
        yield rest


def _distinct_lines(block: bytes, kinds: set[int]) -> bytes:
    """Return the lines of a kind that is not in ``kinds`` yet, each with the line before it, and add their kinds."""
    if len(kinds) > _MOST_KINDS:
        kinds.clear()
    lines = block.replace(b"\r", b"\n").split(b"\n")
    distinct: list[bytes] = []
    last = -1
    for at, line in enumerate(lines):
        kind = hash(_NUMBER.sub(b"0", line))
        if kind not in kinds:
            kinds.add(kind)
            distinct += lines[max(last + 1, at - 1) : at + 1]
            last = at
    return b"\n".join([*distinct, b""]) if distinct else b""


def holds_secret(*documents: Any) -> bool:
    """Return whether these documents and texts contain a secret that is recognizable by its name, place or form."""
    return bool(redact_document(documents) != documents)


def may_hold(text: str) -> bool:
    """Return whether a document with this text may contain a secret. Only the answer False is certain."""
    url = "://" in text and ("@" in text or "?" in text)
    folded = text.casefold()
    others = any(hint in folded for hint in _OTHER_HINTS)
    return url or others or _may_name(text) or any(hint in text for hint in _FORM_HINTS)


def redact(text: str) -> str:
    """Return ``text`` without passwords and tokens, and without the users and query values in URLs."""
    return Secrets().hide(text)


def redact_variable(name: str, value: str) -> str:
    """Return an environment variable's value for display."""
    return HIDDEN if _is_secret(name, value, literal=True) else redact(value)


def redact_document(document: Any) -> Any:
    """Return a JSON document for display."""
    return Secrets().learn(document).hide_document(document)


def fill(document: Any, values: Mapping[str, str]) -> Any:
    """Return a document with marks (``***NAME***``) replaced by the values with these names. Other marks are kept."""
    if isinstance(document, str):
        return _MARK.sub(lambda mark: values.get(mark["name"] or "", mark[0]), document)
    if isinstance(document, dict):
        return {fill(key, values): fill(each, values) for key, each in document.items()}
    return [fill(each, values) for each in document] if isinstance(document, list) else document


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of the redacted values in a text. The name of an unnamed value is an empty string."""
    return tuple(dict.fromkeys(mark["name"] or "" for mark in _MARK.finditer(text)))


def _marks_in(document: Any) -> set[str]:
    """Return the names in a document's texts that look like marks (``***NAME***``) but do not hide anything.

    No secret may get such a name.
    """
    if isinstance(document, Mapping):
        return {name for each in document.values() for name in _marks_in(each)}
    if isinstance(document, (list, tuple)):
        return {name for each in document for name in _marks_in(each)}
    return set(names_in(document)) - {""} if isinstance(document, str) else set()


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether an option, a variable or a key with this name holds a secret."""
    return _may_name(name) and bool(_IS_NAME.fullmatch(name)) and not _IS_NO_SECRET.search(name)


def _name_within(around: Mapping[Any, Any], key: Any, each: Any, name: str) -> str:
    """Return the name for the value of ``key``: either the key itself or the enclosing object's name."""
    if key not in _VALUE_KEYS:
        is_part = isinstance(each, (Mapping, list, tuple)) or (isinstance(each, str) and _looks_secret(each))
        return name if is_part and is_secret_name(name) and not is_secret_name(str(key)) else str(key)
    own = around.get("name")
    return own if isinstance(own, str) else name


def _option(words: Sequence[Any], at: int) -> str:
    """Return the name of the secret option whose value is word ``at``, or an empty string if there is none."""
    before, word = words[at - 1] if at else None, words[at]
    if not isinstance(before, str) or not isinstance(word, str) or word.startswith("-"):
        return ""
    if at > 1 and words[at - 2] in _SETS_VARIABLE:
        return before if is_secret_name(before) else ""
    option = _OPTION_WORD.fullmatch(before) if before.startswith("-") and _may_name(before) else None
    return option["name"] if option and is_secret_name(option["name"]) else ""


def _is_secret(name: str, value: str, parameters: Collection[str] = (), *, literal: bool = False) -> bool:
    """Return whether an option, a variable or a key with this name and this value holds a secret."""
    if not is_secret_name(name) or not _is_value(value, parameters, literal=literal):
        return False
    return not (_IS_SHORT_NAME.fullmatch(name) and _IS_PLAIN.fullmatch(value.strip().strip("\"'")))


def _is_value(value: str, parameters: Collection[str] = (), *, literal: bool = False) -> bool:
    """Return whether the value can be a secret itself, rather than a reference to one.

    Args:
        value: The text after the name.
        parameters: Names that may appear in braces in place of a value.
        literal: True if the value is used unchanged. Otherwise, a shell may expand variables in it.
    """
    bare = value.strip().strip("\"'")
    if not bare or _MARK.fullmatch(bare) or bare.rstrip(",;").lower() in _NO_VALUES:
        return False
    if _FILE_REFERENCE.fullmatch(bare) or (not literal and _VARIABLE_REFERENCE.fullmatch(bare)):
        return False
    if found := _PLACEHOLDER.fullmatch(bare):
        name = found["name"] or found["variable"]
        return name not in parameters and not (is_secret_name(name) and (name.islower() or found["variable"]))
    return True


def _parameters_in(document: Any) -> Iterator[str]:
    """Yield the names of parameters that a document or a command line sets."""
    if isinstance(document, Mapping):
        for key, each in document.items():
            if key == "parameters" and isinstance(each, Mapping):
                yield from map(str, each)
            yield from _parameters_in(each)
    elif isinstance(document, (list, tuple)):
        for each in document:
            if isinstance(each, str):
                if "=" in each and (found := _IS_ASSIGNMENT.fullmatch(each)):
                    yield found["name"]
            else:
                yield from _parameters_in(each)
    elif is_dataclass(document) and not isinstance(document, type):
        yield from _parameters_in({each.name: getattr(document, each.name) for each in fields(document) if each.init})


def _secrets_of_programs(words: Sequence[Any], parameters: Collection[str]) -> dict[int, _Span]:
    """Return the secrets that ``_of_programs`` finds in a command line, by the index of the word that contains each."""
    if not all(isinstance(word, str) for word in words):
        return {}
    line = " ".join(words)
    if "-u" not in line and not any(hint in line.casefold() for hint in _OTHER_HINTS):
        return {}
    # The length stays the same, but spaces and quotes within words are gone.
    line = " ".join(_SYNTAX.sub("\x7f", word) for word in words)
    found, start = {}, 0
    spans = sorted(_of_programs(line, parameters), key=lambda each: each.start)
    for at, word in enumerate(words):
        end = start + len(word)
        for span in spans:
            if start <= span.start < end and at not in found:
                value = word[span.start - start :]
                found[at] = _Span(span.start - start, len(word), span.name, value)
        start = end + 1
    return found


def _is_telling(value: str) -> bool:
    """Return whether the value is long enough to be searched for in other places."""
    if len(value) < _LEAST_WORD or _MARK.fullmatch(value) or _IS_WORD.fullmatch(value):
        return False
    return not (value.isdigit() and len(value) < _LEAST_PART - 2)


def _parts(value: str) -> Iterator[str]:
    """Yield the value, and the parts of it that may be printed alone."""
    yield value
    if "\n" in value:
        yield from (line for line in value.splitlines() if len(line) >= 2 * _LEAST_PART)
    # A shell prints the text around a variable unchanged.
    around = _EXPANSION.split(value) if "$" in value else []
    yield from (part.strip() for part in around if _is_telling(part.strip()))


@lru_cache(maxsize=1024)
def _in_any_notation(text: str) -> str:
    """Return a regular expression for the text as written in Python, JSON, YAML, CSV, shells, URLs and HTML.

    Notations may be nested, as in JSON within JSON, so any number of backslashes may precede an escaped character.
    """
    units = re.findall(r"(\\*)('+|\"+|.|\Z)", text, re.DOTALL)
    # The quotes of a shell could match a long run of quotes in too many ways.
    in_shell = not re.search(r"(?:['\"]\\*){16}", text)
    word = "".join(
        _unit(len(backslashes), characters, in_shell, is_first=at == 0)
        for at, (backslashes, characters) in enumerate(units)
    )
    return word if len(text) >= _LEAST_PART else rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"


_BACKSLASH = r"(?:\\|%(?:25)*5[Cc])"
#: The position after anything but a backslash, whose encodings in URLs may be nested.
_NO_BACKSLASH = r"(?<!\\)" + "".join(rf"(?<!%{'25' * depth}5[Cc])" for depth in range(5))
#: A single quote as written in a shell's word in single quotes, and in such a word within another one.
_SHELL_QUOTE = rf"'{_BACKSLASH}*\"'{_BACKSLASH}*\"'"
_SHELL_QUOTES = rf"{_SHELL_QUOTE}{_BACKSLASH}*\"{_SHELL_QUOTE}{_BACKSLASH}*\"{_SHELL_QUOTE}|{_SHELL_QUOTE}|'\\+''"
_ENTITIES = {"'": "|apos", '"': "|quot", "<": "|lt", ">": "|gt"}
_LETTERS = {"\n": "n", "\r": "r", "\t": "t"}


@lru_cache(maxsize=1024)
def _unit(backslashes: int, characters: str, in_shell: bool, *, is_first: bool = False) -> str:
    """Return a regular expression for a number of backslashes, followed by a character or several equal quotes.

    Only one part of it matches a variable number of backslashes, as backtracking would take too long otherwise.

    Args:
        backslashes: Number of backslashes in front of the character.
        characters: One character, several equal quotes, or nothing at the end of a text.
        in_shell: Whether to include single quotes as written within a shell's single quotes.
        is_first: Whether a match begins here. Then, backslashes match only from the first one of a sequence, because
            starting at each one would take quadratic time.
    """
    begin = _NO_BACKSLASH if is_first else ""
    before = f"{begin}{_BACKSLASH}{{{backslashes},}}" if backslashes else ""
    if not characters or (characters.isascii() and (characters.isalnum() or characters == "_")):
        return before + characters
    character, number = characters[0], len(characters)
    code, data = ord(character), character.encode("utf-8", "surrogatepass")
    escaped = [
        f"{_BACKSLASH}+".join(f"x{byte:02x}" for byte in data),
        f"{_BACKSLASH}+".join(f"{byte:03o}" for byte in data),
        *(f"x{code:02x}", f"u{code:04x}", rf"u\{{0*{code:x}\}}", f"U{code:08x}", *_LETTERS.get(character, "")),
    ]
    if code > 0xFFFF:  # JSON uses two surrogates
        high, low = divmod(code - 0x10000, 0x400)
        escaped.append(rf"u{0xD800 + high:04x}{_BACKSLASH}+u{0xDC00 + low:04x}")
    plain = [
        "".join(f"%(?:25)*{byte:02x}" for byte in data),
        f"&(?:amp;)*(?:#0*{code}|#x0*{code:x}{_ENTITIES.get(character, '')});",
        {" ": "[ +]", "&": "&(?:amp;)*"}.get(character) or re.escape(character),
    ]
    if character in "'\"" and number == 1:
        plain.insert(0, character * 2)  # in YAML and CSV
    if character == "'" and in_shell:
        plain.insert(0, _SHELL_QUOTES)
    alone = f"(?i:{'|'.join((*escaped, *plain))})"
    usual = f"(?i:{_BACKSLASH}+(?:{'|'.join(escaped)})|{_BACKSLASH}*(?:{'|'.join(plain)}))"
    first = f"(?i:{begin}{_BACKSLASH}+(?:{'|'.join((*escaped, *plain))})|{'|'.join(plain)})" if is_first else usual
    first = before + alone if backslashes else first
    return first if number == 1 else f"{first}{usual}{{{number - 1},{2 * number - 1}}}"


def _encoded(word: str) -> str:
    from hidl_workloads.own_program import encode

    return encode([word])[0]


def _decoded(word: Any) -> Any:
    """Return the word that ``own_program.encode`` was given, or else the word unchanged."""
    if not isinstance(word, str) or "%" not in word or not _IS_ENCODED.fullmatch(word):
        return word
    from hidl_workloads.own_program import decode

    return decode(word)


def _spans(text: str, parameters: Collection[str] = (), *, literal: bool = False) -> Iterator[_Span]:
    """Yield the secrets that can be recognized in the text itself."""
    if "://" in text and ("@" in text or "?" in text):
        addresses = text
        for span in _users(text):
            yield span
            # A password may contain a "?".
            addresses = addresses[: span.start] + "x" * (span.end - span.start) + addresses[span.end :]
        yield from _query_values(addresses)
    for found in _PATH_TOKEN.finditer(text) if "://" in text and "/t/" in text else ():
        if _looks_secret(found["value"]):
            yield _Span(found.start("value"), found.end("value"), "token", found["value"])
    if _may_name(text):
        yield from _named(text, parameters, literal=literal)
    folded = text.casefold()
    for found in _AUTHORIZATION.finditer(text) if "authorization" in folded else ():
        if _is_value(found["value"], parameters):
            yield _Span(found.start("value"), found.end("value"), "authorization", found["value"])
    has_others = any(hint in folded for hint in _OTHER_HINTS)
    if has_others:
        yield from _of_headers_and_files(text)
    if has_others or "-u" in text:
        yield from _of_programs(text, parameters)
    if any(hint in text for hint in _FORM_HINTS):
        for found in _FORMS.finditer(text):
            yield _Span(found.start(), found.end(), "secret", found[0])


def _named(text: str, parameters: Collection[str], *, literal: bool) -> Iterator[_Span]:
    """Yield the values of options, variables and keys whose names indicate a secret."""
    for found in (*_ASSIGNED.finditer(text), *_OPTION.finditer(text)):
        start, end = _shell_word(text, found.end())
        if _is_secret(found["name"], text[start:end], parameters, literal=literal or _is_quoted(text, start)):
            # A connection string: Pwd=x;Database=y.
            first = text[start:end].partition(";")[0]
            yield _Span(start, end, found["name"], text[start:end], (first,) if _looks_secret(first) else ())
    for found in _QUOTED.finditer(text):
        quoted = literal or found["quote"].endswith("'")
        if _is_secret(found["name"], found["value"], parameters, literal=quoted) and not _is_scheme(found):
            yield _Span(found.start("value"), found.end("value"), found["name"], found["value"])
    for found in _LINE.finditer(text):
        name, value = found["name"], found["value"]
        whole = not re.search(r"\s", value) or (_TAKES_PASSPHRASE.search(name) and _IS_PASSPHRASE.fullmatch(value))
        # A test suite prints "PASS: test_2x".
        usual = whole and not _IS_SHORT_NAME.fullmatch(name) and not _is_scheme(found)
        if usual and _is_secret(name, value, parameters, literal=True):
            yield _Span(found.start("value"), found.end("value"), name, value)
    for found in _BESIDE.finditer(text):
        name, value = found["name"], found["value"]
        usual = _looks_secret(value) and not _IS_SHORT_NAME.fullmatch(name)
        if usual and _is_secret(name, value, parameters, literal=literal):
            yield _Span(found.start("value"), found.end("value"), name, value)


def _of_headers_and_files(text: str) -> Iterator[_Span]:
    """Yield secrets that have no name, such as cookies in HTTP headers and private keys in files."""
    for pattern in (_COOKIE, _PRIVATE_KEY, _WEBHOOK):
        for found in pattern.finditer(text):
            yield _Span(found.start("value"), found.end("value"), "secret", found["value"].strip())
    for found in _BEARER.finditer(text):
        if _looks_secret(found["value"]):
            yield _Span(found.start("value"), found.end("value"), "authorization", found["value"])


def _of_programs(line: str, parameters: Collection[str]) -> Iterator[_Span]:
    """Yield passwords in command lines of other programs that no option name reveals (``sshpass -p PASSWORD``)."""
    for found in (*_PROGRAM_PASSWORD.finditer(line), *_LOGIN.finditer(line)):
        start, end = _shell_word(line, found.end())
        name = "password"
        if found.re.pattern == _LOGIN.pattern:
            login = _IS_LOGIN.fullmatch(line[start:end])
            name, start = "authorization", start + login.start("value") if login else end
        if _is_value(line[start:end], parameters, literal=_is_quoted(line, start)):
            yield _Span(start, end, name, line[start:end])


def _looks_secret(value: str) -> bool:
    """Return whether the value looks like a secret rather than a word, a quantity, a date or a path."""
    letters_and_digits = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return len(value) >= _LEAST_PART and letters_and_digits and not _IS_QUANTITY.fullmatch(value)


def _is_scheme(found: re.Match[str]) -> bool:
    """Return whether the value begins with a scheme, in which case ``_AUTHORIZATION`` finds the secret after it."""
    return found["name"].casefold().endswith("authorization") and " " in found["value"]


def _may_name(text: str) -> bool:
    """Return whether the text may contain the name of a secret. Only the answer False is certain."""
    folded = text.casefold()
    if any(hint in folded for hint in _HINTS):
        return True
    return ("pass" in folded or "pwd" in folded) and bool(_SHORT_HINT.search(folded))


def _users(text: str) -> Iterator[_Span]:
    """Yield the user and password in each URL, up to the last @ that may end them."""
    ends: dict[int, list[int]] = {}
    for found in (*_USER.finditer(text), *_USER_WITH_SLASH.finditer(text), *_TOKEN_WITH_SLASH.finditer(text)):
        if not _MARK.fullmatch(found[0]):
            ends.setdefault(found.start(), []).append(found.end())
    for start, found_ends in ends.items():
        end = max(found_ends)
        host = re.match(r"@([\w.-]*)", text[end:])
        passwords = {text[start:each].partition(":")[2] for each in found_ends}
        parts = tuple(each for each in sorted(passwords, key=len, reverse=True) if each)
        yield _Span(start, end, f"user_of_{host[1] if host else ''}", text[start:end], parts)


def _query_values(text: str) -> Iterator[_Span]:
    """Yield the values in URL queries."""
    for url in _WITH_QUERY.finditer(text):
        for found in _QUERY_VALUE.finditer(url[0], url[0].index("?") + 1):
            start, end = (url.start() + place for place in found.span("value"))
            is_secret = is_secret_name(found["name"]) or _SIGNS.fullmatch(found["name"])
            if not _MARK.fullmatch(found["value"]):
                yield _Span(start, end, found["name"], found["value"] if is_secret else "")


def _union(spans: Sequence[_Span]) -> list[_Span]:
    """Return the spans in order, merging overlapping ones so that no part of a secret remains."""
    found: list[_Span] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        if found and span.start < found[-1].end:
            last = found[-1]
            found[-1] = replace(last, end=max(last.end, span.end))
        elif span.end > span.start:
            found.append(span)
    return found


def _shell_word(text: str, start: int) -> tuple[int, int]:
    """Return the span of the shell word that begins at ``start``, without the quotes around it."""
    around = _quote_around(text, start)
    # A quote within quotes in the notation of shlex and bash: 'TOKEN='"'"'x'"'"' train'.
    for quote_ in ("'\"'\"'", "'\\''") if around == "'" else ():
        if text.startswith(quote_, start) and (close := text.find(quote_, start + len(quote_))) >= 0:
            return start + len(quote_), close
    at = start
    while at < len(text):
        character, following = text[at], text[at + 1 : at + 2]
        if character.isspace() or character == around:
            break
        if character in ";&|)" and (not following or following.isspace() or following in (character, around)):
            break
        at = _after(text, at)
    end = min(at, len(text))
    word = text[start:end]
    if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" and word[0] not in word[1:-1]:
        return start + 1, end - 1
    return start, end


def _after(text: str, at: int) -> int:
    """Return the index after the character at ``at``, or after the whole quotation or substitution that it opens."""
    if text[at] == "\\":
        return at + 2
    if text[at] in "'`":
        close = text.find(text[at], at + 1)
        return close + 1 if close >= 0 else at + 1
    closing = '"' if text[at] == '"' else ")" if text.startswith("$(", at) else ""
    if not closing:
        return at + 1
    inside = at + (1 if closing == '"' else 2)
    while inside < len(text) and text[inside] != closing:
        nested = text[inside] in "\\`" or text.startswith("$(", inside) or (closing == ")" and text[inside] in "'\"")
        inside = _after(text, inside) if nested else inside + 1
    return inside + 1 if inside < len(text) else at + 1


def _is_quoted(text: str, start: int) -> bool:
    """Return whether the text at ``start`` is in single quotes.

    It must either follow the opening quote directly, or be part of a quotation without spaces.
    """
    opening = text.rfind("'", 0, start)
    if opening < 0 or _quote_around(text, opening):
        return False
    closing = text.find("'", start)
    return opening == start - 1 or not re.search(r"\s", text[opening : closing if closing >= 0 else len(text)])


def _quote_around(text: str, place: int) -> str:
    """Return the quote that is open at ``place`` in its line, or an empty string if there is none."""
    at, quote_ = text.rfind("\n", 0, place) + 1, ""
    if text.find("'", at, place) < 0 and text.find('"', at, place) < 0:
        return ""
    while at < place:
        if text[at] == "\\" and quote_ != "'":
            at += 1
        elif quote_:
            quote_ = "" if text[at] == quote_ else quote_
        elif text[at] in "'\"":
            quote_ = text[at]
        at += 1
    return quote_
