"""Fields that take names of a registry: the same errors and JSON Schema as a ``Literal`` of these names."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from hidl_cli.inputs.check import NameIn, Strict, fault_of
from hidl_cli.plugins import Registry

FRUIT: Registry[object] = Registry("hidl.parsers", "fruit", {"apple": "a:a", "pear": "a:b"})
OfRegistry = Annotated[str, NameIn(FRUIT)]
OfLiteral = Literal["apple", "pear"]


class Named(Strict):
    one: OfRegistry = Field("apple", description="a fruit")
    maybe: OfRegistry | None = None
    many: list[OfRegistry] = Field(default_factory=list)
    keys: dict[OfRegistry, int] = Field(default_factory=dict)


class Written(Strict):
    one: OfLiteral = Field("apple", description="a fruit")
    maybe: OfLiteral | None = None
    many: list[OfLiteral] = Field(default_factory=list)
    keys: dict[OfLiteral, int] = Field(default_factory=dict)


def test_the_json_schema_is_that_of_a_literal() -> None:
    assert Named.model_json_schema()["properties"] == Written.model_json_schema()["properties"]


@pytest.mark.parametrize(
    "given",
    [{"one": "pera"}, {"maybe": "pera"}, {"many": ["pear", "pera"]}, {"keys": {"pera": 1}}, {"one": 3}, {"one": None}],
    ids=str,
)
def test_errors_are_those_of_a_literal(given: dict[str, object]) -> None:
    faults = []
    for model in (Named, Written):
        with pytest.raises(ValidationError) as caught:
            model.model_validate(given)
        faults.append([fault_of(model, detail) for detail in caught.value.errors()])
    assert faults[0] == faults[1]
    assert len(faults[0]) == 1


def test_names_are_accepted() -> None:
    found = Named.model_validate({"one": "pear", "maybe": None, "many": ["pear"], "keys": {"apple": 1}})
    assert (found.one, found.maybe, found.many, found.keys) == ("pear", None, ["pear"], {"apple": 1})
