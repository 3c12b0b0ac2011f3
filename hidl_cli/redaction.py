"""What is secret is taken out of texts before they are shown, logged or stored: the one place that knows how."""

from __future__ import annotations

import re
from typing import Any

#: What stands for a secret.
HIDDEN = "***"

# To the last @ before path, query or fragment: a password may hold one.
_USER = re.compile(r"(?<=://)[^\s/?#]*(?=@)")
# A password with a / in it, which nobody may write and some do: "user:" and no port number before it.
_USER_WITH_SLASH = re.compile(r"(?<=://)[^\s/?#@:]*:(?!\d+(?:[/?#]|$))[^\s\"'<>]*(?=@)")
_WITH_QUERY = re.compile(r"://[^\s?#\"'<>]*\?[^\s#\"'<>]*")
_VALUE = re.compile(r"(?<==)[^&\s]+")
_SECRET_NAME = (
    r"[A-Z0-9_-]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN(?![A-Z])|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)"
    r"[A-Z0-9_-]*"
)
_IS_SECRET = re.compile(_SECRET_NAME, re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?P<name>(?<![A-Za-z0-9_&?-]){_SECRET_NAME})=(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)", re.IGNORECASE)
_AUTHORIZATION = re.compile(r"(?P<name>\bAuthorization:\s*(?:Basic|Bearer|Token)\s+)[^\s'\"]+", re.IGNORECASE)


def redact(text: str) -> str:
    """Return ``text`` without users, passwords and query values of URLs, and values of variables with secret names."""
    text = _USER.sub(HIDDEN, text)
    text = _USER_WITH_SLASH.sub(HIDDEN, text)
    text = _WITH_QUERY.sub(lambda url: _without_values(url[0]), text)
    text = _AUTHORIZATION.sub(rf"\g<name>{HIDDEN}", text)
    return _ASSIGNED.sub(rf"\g<name>={HIDDEN}", text)


def redact_variable(name: str, value: str) -> str:
    """Return the value of an environment variable as it may be shown."""
    return HIDDEN if value and _IS_SECRET.fullmatch(name) else redact(value)


def redact_document(value: Any, name: str = "") -> Any:
    """Return a JSON document as it may be shown; ``name``: the key of ``value``."""
    if isinstance(value, dict):
        return {key: redact_document(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [redact_document(each, name) for each in value]
    return redact_variable(name, value) if isinstance(value, str) else value


def _without_values(url: str) -> str:
    place, _, query = url.partition("?")
    return f"{place}?{_VALUE.sub(HIDDEN, query)}"
