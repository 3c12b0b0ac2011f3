"""Names taken out of what a machine answers: of users, hosts, accounts and addresses, each always by the same word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hidl_cli.redaction import redact
from hidl_cli.site.probes.host import Host

_HOME = "/home/user1"
_HOST = "host"
_TELLS_ACCOUNTS = "sacctmgr"
_DOMAIN = "example.org"
#: Words that name nobody.
_NOBODY = frozenset(
    ("", "root", "nobody", "slurm", "localhost", "ALL", "NO", "NONE", "N/A", "(null)", "all", "users", "default")
)
# Slurm's lists of accounts and groups, who set a node down, and whose it is; LSF's and PBS's lists of users.
_ACCOUNTS = re.compile(r"\b(?:Allow|Deny)Accounts=(\S+)")
_GROUPS = re.compile(r"\bAllowGroups=(\S+)")
_USERS = re.compile(
    r"\[([A-Za-z_][\w.-]*)@\d{4}-\d\d-\d\d|\bOwner=(\w\S*)|^USERS:\s+(.+)$|\bacl_users *= *(\S+)", re.MULTILINE
)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
# Not everything of four numbers: some libraries have such versions.
_IPV4 = re.compile(r"(?<=[=(@])(?!127\.|0\.)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_HARDWARE = re.compile(
    r"\b[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,}\b|(?<=GUID: )0x[0-9a-fA-F]+|\b[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}\b"
)


@dataclass(frozen=True)
class Anonymous:
    """``words`` stand for names; longer names come first."""

    words: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, host: Host, answers: Mapping[tuple[str, ...], str]) -> Anonymous:
        """What to take out of the ``answers`` of ``host`` to commands."""
        text = "\n".join(answers.values())
        accounts = [
            line.strip()
            for command, said in answers.items()
            if command[0] == _TELLS_ACCOUNTS
            for line in said.splitlines()
        ]
        user, home = host.environment.get("USER", ""), host.environment.get("HOME", "")
        short, *labels = host.hostname.split(".")
        own = short if short[-1:].isdigit() else _HOST  # one of many of that name, which is nobody's
        found = {short: own} if short not in _NOBODY else {}
        if labels:
            found[host.hostname] = f"{own}.{_DOMAIN}"
        found |= {".".join(labels[first:]): _DOMAIN for first in range(len(labels) - 1)}
        found |= {home: _HOME} if home.count("/") > 1 else {}
        found |= _numbered("user", [user, *_listed(_USERS, text)])
        found |= _numbered("account", [*_listed(_ACCOUNTS, text), *accounts])
        found |= _numbered("group", _listed(_GROUPS, text))
        return cls(tuple(sorted(found.items(), key=lambda pair: -len(pair[0]))))

    def clean(self, text: str) -> str:
        """``text`` without names, addresses and secrets."""
        text = redact(text)
        for name, word in self.words:
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", word, text)
        text = _MAIL.sub(f"user@{_DOMAIN}", text)
        text = _IPV4.sub("192.0.2.1", text)
        return _HARDWARE.sub(lambda found: re.sub(r"[0-9a-fA-F](?!x)", "0", found[0]), text)


def _listed(pattern: re.Pattern[str], text: str) -> list[str]:
    lists = (part for found in pattern.finditer(text) for part in found.groups() if part)
    return [name for each in lists for name in re.split(r"[,\s]+", each)]


def _numbered(kind: str, names: Iterable[str]) -> dict[str, str]:
    known = dict.fromkeys(name for name in names if name not in _NOBODY)
    return {name: f"{kind}{number}" for number, name in enumerate(known, start=1)}
