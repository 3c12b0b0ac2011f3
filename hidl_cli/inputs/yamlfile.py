"""Parse YAML into a tree of values with positions.

The tree is built from the parser's *events*, so no third-party code recurses, expands aliases or constructs objects.
Only what a configuration needs is supported: one document with a mapping at the top, text keys, and the tags of the
core schema. Limits keep malicious files from taking more than a moment and a few megabytes. Events are typed as
``Any`` because PyYAML's stubs do not declare which of them have an anchor, a tag and a position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.inputs import problems as scalars
from hidl_cli.inputs.problems import clipped
from hidl_cli.inputs.source import UNPRINTABLE, Member, SourceText, Span, YamlNode, describe, plain, read_source
from hidl_cli.redaction import may_hold, remember

MAX_DEPTH = 50
MAX_VALUES = 50_000
MAX_FINDINGS = 100

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser is about 20 times faster
_MAPPING = "a mapping of `key: value` lines"
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, tuple[type, ...]] = {
    _TAG + "null": (type(None),),
    _TAG + "bool": (bool,),
    _TAG + "int": (int,),
    _TAG + "float": (float, int),
}
_ADVICE = {
    "mapping values are not allowed": "one `key: value` per line, with quotes around text that contains `: `",
    "found a tab character": "spaces for indentation; YAML does not allow tabs there",
    "cannot start any token": "quotes around text that starts with a special character, and no tabs for indentation",
    "unexpected end of stream": "a closing quote or bracket",
    "expected ',' or": "a comma between items, and a closing bracket",
}


@dataclass(frozen=True)
class Document:
    """A file's tree (None if it could not be parsed), and all problems with its syntax."""

    file: Path
    root: YamlNode | None
    problems: tuple[Problem, ...]


def read(path: Path) -> Document:
    """Read a YAML file. Problems with its type or contents are returned, not raised."""
    try:
        return parse(read_source(path))
    except InvalidInput as error:
        return Document(path, None, error.problems)


def parse(source: SourceText) -> Document:
    """Parse YAML text. Problems with its contents are returned, not raised."""
    builder = _Builder(source)
    try:
        root = builder.document()
    except InvalidInput as error:
        remember(source.text)
        return Document(source.file, None, (*builder.problems, *error.problems))
    if may_hold(source.text):
        remember(source.text, plain(root))
    return Document(source.file, root, tuple(builder.problems))


@dataclass
class _Anchor:
    """A node that aliases can refer to (None until it is complete), its number of values, and its depth."""

    node: YamlNode | None = None
    values: int = 0
    levels: int = 0


@dataclass
class _Builder:
    """Builds a document's tree from its events, and collects recoverable faults in ``problems``."""

    source: SourceText
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, _Anchor] = field(default_factory=dict)
    values: int = 0
    deepest: int = 0

    def document(self) -> YamlNode:
        """Return the root mapping. Raises ``InvalidInput`` for a fault that prevents further reading."""
        events = self._events()
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            self._stop(Span(self.source, 0, 0), "the file is empty", _MAPPING)
        root = self._node(next(events), events, depth=1)
        next(events)  # the end of the document
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._stop(self._span(after), "the file contains more than one document", "one document per file")
        if not isinstance(root.content, dict):
            self._stop(root.span, f"the file contains {describe(root.content)}", _MAPPING)
        return root

    def _events(self) -> Iterator[Any]:
        try:
            yield from yaml.parse(self.source.text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            self._stop_at_syntax_error(error)
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: invalid escapes such as \UFFFFFFFF
            self._stop(Span(self.source, 0, 0), f"invalid YAML: {error}", "valid YAML")

    def _node(self, event: Any, events: Iterator[Any], *, depth: int) -> YamlNode:
        """Return the node that begins with ``event``, consuming its events."""
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        values, deepest = self.values, self.deepest
        self._grow(event, values=1, depth=depth)
        self.deepest = depth
        anchor = _Anchor()
        if event.anchor:
            self.anchors[event.anchor] = anchor
        if isinstance(event, yaml.ScalarEvent):
            anchor.node = self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            anchor.node = self._mapping(event, events, depth)
        else:
            anchor.node = self._sequence(event, events, depth)
        anchor.values, anchor.levels = self.values - values, self.deepest - depth
        self.deepest = max(deepest, self.deepest)
        return anchor.node

    def _alias(self, event: Any, depth: int) -> YamlNode:
        anchor = self.anchors.get(event.anchor)
        name = clipped(event.anchor)
        if anchor is None:
            self._stop(self._span(event), f"unknown anchor `&{name}`", "an alias of an anchor above")
        if anchor.node is None:
            self._stop(self._span(event), f"`*{name}` refers to itself", "an alias of another value")
        self._grow(event, values=anchor.values, depth=depth + anchor.levels)
        self.deepest = max(self.deepest, depth + anchor.levels)
        return anchor.node

    def _scalar(self, event: yaml.ScalarEvent) -> YamlNode:
        span = self._span(event)
        if UNPRINTABLE.search(event.value):  # comes from an escape sequence in double quotes
            self._fault(span, "the text contains a control character", "printable text")
        if (event.tag is None and not event.implicit[0]) or event.tag in (_TAG + "str", "!"):
            return YamlNode(span, event.value)
        try:
            value = scalars.resolve(event.value)
        except ValueError as error:
            self._fault(span, f"{error}", f"at most {scalars.MAX_DIGITS} digits")
            value = 0
        if event.tag in _SCALAR_TAGS and not isinstance(value, _SCALAR_TAGS[event.tag]):
            self._fault(
                span, f"the tag `{event.tag.replace(_TAG, '!!')}` does not fit this value", "the value without a tag"
            )
        elif event.tag is not None and event.tag not in _SCALAR_TAGS:
            self._unknown_tag(event)
        return YamlNode(span, value)

    def _sequence(self, start: yaml.SequenceStartEvent, events: Iterator[Any], depth: int) -> YamlNode:
        if start.tag not in (None, "!", _TAG + "seq"):
            self._unknown_tag(start)
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._node(event, events, depth=depth + 1))
        return YamlNode(self._span(start), items)

    def _mapping(self, start: yaml.MappingStartEvent, events: Iterator[Any], depth: int) -> YamlNode:
        if start.tag not in (None, "!", _TAG + "map"):
            self._unknown_tag(start)
        members: dict[str, Member] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, depth=depth + 1)
            value = self._node(next(events), events, depth=depth + 1)
            name = self._key(key, members)
            if name is not None:
                members[name] = Member(key.span, value)
        return YamlNode(self._span(start), members)

    def _key(self, key: YamlNode, members: dict[str, Member]) -> str | None:
        """Return the text of a new key, or report an error and return None if the key is invalid."""
        written = clipped(self.source.text[key.span.start : key.span.end])
        if written == "<<":
            self._fault(key.span, "merge keys (`<<`) are not part of YAML 1.2", "the keys themselves, or `extends`")
        elif not isinstance(key.content, str):
            quoted = "" if isinstance(key.content, dict | list) else f'; if this is a name, write it as "{written}"'
            self._fault(key.span, f"the key `{written}` is {describe(key.content)}", f"a key that is text{quoted}")
        elif key.content in members:
            first = members[key.content].key.mark().line
            self._fault(key.span, f"the key `{written}` is duplicated, first on line {first}", "each key once")
        else:
            return key.content
        return None

    def _grow(self, event: Any, *, values: int, depth: int) -> None:
        """Count further values, and stop reading if the document is too large or nested too deeply."""
        self.values += values
        if self.values > MAX_VALUES:
            self._stop(self._span(event), f"more than {MAX_VALUES:,} values, counting every alias", "fewer values")
        if depth > MAX_DEPTH:
            self._stop(self._span(event), f"nested deeper than {MAX_DEPTH} levels", f"at most {MAX_DEPTH} levels")

    def _unknown_tag(self, event: Any) -> None:
        name = event.tag.replace(_TAG, "!!")
        self._fault(self._span(event), f"the tag `{clipped(name)}` is not supported", "plain YAML values, without tags")

    def _fault(self, span: Span, message: str, expected: str) -> None:
        """Report an error and continue."""
        if len(self.problems) == MAX_FINDINGS:
            self._stop(span, f"more than {MAX_FINDINGS} errors; the rest of the file was not read", "valid YAML")
        self.problems.append(Problem(message, expected, mark=span.mark()))

    def _stop(self, span: Span, message: str, expected: str) -> NoReturn:
        """Report an error and stop reading."""
        raise InvalidInput(f"{span.source.file}: {message}", problems=[Problem(message, expected, mark=span.mark())])

    def _stop_at_syntax_error(self, error: yaml.MarkedYAMLError) -> NoReturn:
        problem = str(error.problem or error.context)
        spans = [self._span_at(mark) for mark in (error.problem_mark, error.context_mark) if mark is not None]
        span = spans[0] if spans else self._span_at(None)
        if len(spans) > 1 and spans[1].mark().line != span.mark().line:
            problem += f" ({error.context} that started on line {spans[1].mark().line})"
        advice = next((words for part, words in _ADVICE.items() if part in problem), "valid YAML")
        self._stop(span, f"invalid YAML: {problem}", advice)

    def _span(self, event: Any) -> Span:
        return Span(self.source, event.start_mark.index, event.end_mark.index)

    def _span_at(self, mark: Any) -> Span:
        """Return the span of the character at a parser mark, which may be beyond the end of the text."""
        at = min(mark.index, max(0, len(self.source.text.rstrip()) - 1)) if mark else 0
        return Span(self.source, at, at + 1)
