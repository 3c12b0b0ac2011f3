"""The building blocks of the schemas: the strict base model, and the kinds of words that people write in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticKnownError, core_schema

if TYPE_CHECKING:
    from hidl_cli.plugins import Registry

_NAME = r"^[a-z0-9][a-z0-9._-]*$"
_IDENTIFIER = r"^[a-z][a-z0-9_]*$"
_MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_SCHEDULER_WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.:/+@=,&|*()\[\]-]*$"
_FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
_SHA256 = r"^[0-9a-f]{64}$"
PATTERN_OF_TIMES = r"^([0-9]{1,4}-[0-9]{1,3}|[0-9]{1,7})(:[0-5]?[0-9]){0,2}$"

MAX_REGEX = 1000  # longer regular expressions are a mistake, and slow to compile

#: What each pattern means, in words.
PATTERNS = {
    _NAME: "lower-case letters, digits, and . _ - after the first character",
    _IDENTIFIER: "lower-case letters, digits and _, starting with a letter",
    _MODULE: "a Python module name, such as package.module",
    _VARIABLE: "an environment variable name: letters, digits and _, not starting with a digit",
    _SCHEDULER_WORD: "one word without spaces or quotes, not starting with a sign",
    _FILE_NAME: "a file name without a directory: letters, digits and . _ + -",
    _SHA256: "64 hexadecimal digits, in lower case",
    PATTERN_OF_TIMES: "a time in a form of Slurm's: minutes, minutes:seconds, hours:minutes:seconds, days-hours, "
    "days-hours:minutes or days-hours:minutes:seconds, such as 90, 48:00:00 or 2-00",
}

Name = Annotated[str, Field(pattern=_NAME, max_length=64, description=PATTERNS[_NAME])]
Identifier = Annotated[str, Field(pattern=_IDENTIFIER, max_length=64, description=PATTERNS[_IDENTIFIER])]
Module = Annotated[str, Field(pattern=_MODULE, description=PATTERNS[_MODULE])]
EnvironmentVariable = Annotated[str, Field(pattern=_VARIABLE, max_length=128, description=PATTERNS[_VARIABLE])]
SchedulerWord = Annotated[str, Field(pattern=_SCHEDULER_WORD, max_length=128, description=PATTERNS[_SCHEDULER_WORD])]
FileName = Annotated[str, Field(pattern=_FILE_NAME, max_length=255, description=PATTERNS[_FILE_NAME])]
Sha256 = Annotated[str, Field(pattern=_SHA256, description=PATTERNS[_SHA256])]
WallTime = Annotated[str, Field(pattern=PATTERN_OF_TIMES, description=PATTERNS[PATTERN_OF_TIMES])]
Scalar = bool | int | float | str
Regex = Annotated[str, Field(max_length=MAX_REGEX)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class NameIn:
    """Annotates text that must be a name of a registry; plug-ins are searched for only if it is no built-in name."""

    registry: Registry[Any]
    also: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return the valid names."""
        return (*self.registry.names(), *self.also)

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"enum": list(self.names()), "type": "string"}

    def _validate(self, value: object) -> str:
        if not isinstance(value, str) or (value not in self.registry and value not in self.also):
            raise PydanticKnownError("literal_error", {"expected": ", ".join(self.names())})
        return value


class Strict(BaseModel):
    """The base of all that is read from YAML: immutable; an unknown key is an error, a string is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)
