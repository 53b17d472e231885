"""Erasure rules: conditions on the rows of a segment, and actions on matching rows. Offsets never change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa

from leveret.segments import row_view
from leveret.segments.content_encodings import decompress
from leveret.segments.json_paths import JsonPath
from leveret.segments.typed_json import Json
from leveret.selectors import SelectorError, sql_filter

REMOVE: Final = "remove"
DROP_BODY: Final = "drop-body"
MASK: Final = "mask"
HEADER_PREFIX: Final = "header:"
PROPERTY_PREFIX: Final = "property:"
# Properties that can be masked.
PROPERTIES: Final = ("content_type", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id")

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=16_384)]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule applies its action to each row that meets all of its conditions.

    Attributes:
        action: "remove" drops the row, "drop-body" empties its body, "mask" replaces values.
        routing_key: Pattern as in a topic exchange.
        headers: Required header values as text, by name; None matches any value.
        body: Required values as text, by JSON path; numbers are written as in JSON.
        selector: SQL filter, as AMQP 1.0 consumers use it.
        mask: Values to replace: JSON paths into the body, "header:NAME", "property:NAME".
        mask_with: The replacement.
    """

    action: Literal["remove", "drop-body", "mask"]
    routing_key: str | None = None
    headers: dict[Text, str | None] = {}
    body: dict[Text, str] = {}
    selector: Text | None = None
    mask: tuple[Text, ...] = ()
    mask_with: str = "***"


Rules = Annotated[list[Rule], msgspec.Meta(min_length=1, max_length=1000)]


class Counts(msgspec.Struct, kw_only=True):
    """Result of applying rules.

    Attributes:
        rows: Rows examined.
        matched: Rows that matched a rule.
        removed: Rows removed.
        emptied: Rows whose body was dropped.
        masked: Rows with masked values; a matching row that has nothing to mask only counts as matched.
        unreadable: Rows left unchanged because a rule needs their body, which is not JSON or has an unknown encoding.
    """

    rows: int = 0
    matched: int = 0
    removed: int = 0
    emptied: int = 0
    masked: int = 0
    unreadable: int = msgspec.field(default=0, name="unread")

    def add(self, other: Counts) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class CompiledRule:
    """A compiled rule. Raises ValueError if the rule is invalid."""

    def __init__(self, rule: Rule, number: int = 1) -> None:
        self.rule = rule
        self.mask_headers: list[str] = []
        self.mask_properties: list[str] = []
        self.mask_paths: list[JsonPath] = []
        try:
            self._conditions = self._compile_conditions(rule)
            for target in rule.mask:
                self._add_mask(target)
        except SelectorError as error:
            raise ValueError(f"rule {number}: selector: {error}") from None
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from None

    def _compile_conditions(self, rule: Rule) -> list[Callable[[pa.RecordBatch, Counts], list[int]]]:
        conditions: list[Callable[[pa.RecordBatch, Counts], list[int]]] = []
        if rule.routing_key is not None:
            conditions.append(_RoutingKey(rule.routing_key).rows)
        if rule.headers:
            conditions.append(_Headers(rule.headers).rows)
        if rule.selector is not None:
            conditions.append(_Selector(rule.selector).rows)
        if rule.body:
            conditions.append(_Body(rule.body).rows)
        if not conditions:
            raise ValueError("expected a condition: routing_key, headers, body or selector (routing_key '#' matches all)")
        if (rule.action == MASK) != bool(rule.mask):
            raise ValueError("mask lists the values that the action 'mask' replaces: set both or neither")
        return conditions

    def _add_mask(self, target: str) -> None:
        if target.startswith(HEADER_PREFIX):
            self.mask_headers.append(target.removeprefix(HEADER_PREFIX))
        elif target.startswith(PROPERTY_PREFIX):
            name = target.removeprefix(PROPERTY_PREFIX)
            if name not in PROPERTIES:
                raise ValueError(f"mask: property '{name}' cannot be masked; expected one of {', '.join(PROPERTIES)}")
            self.mask_properties.append(name)
        else:
            self.mask_paths.append(JsonPath(target))

    def rows(self, batch: pa.RecordBatch, counts: Counts) -> list[int]:
        """Return the rows that meet all conditions. Counts unreadable rows in `counts`."""
        found = list(range(batch.num_rows))
        for condition in self._conditions:
            if not found:
                break
            part = batch if len(found) == batch.num_rows else batch.take(pa.array(found, pa.int64()))
            found = [found[row] for row in condition(part, counts)]
        return found


def compile_rules(rules: Sequence[Rule]) -> list[CompiledRule]:
    """Compile rules. Raises ValueError for an invalid one."""
    return [CompiledRule(rule, number) for number, rule in enumerate(rules, 1)]


def decode_rules(data: bytes) -> list[Rule]:
    """Decode a JSON list of rules. Raises ValueError if it is invalid."""
    try:
        return msgspec.json.decode(data, type=Rules)
    except msgspec.DecodeError as error:
        raise ValueError(f"rules: {error}") from None


class _RoutingKey:
    def __init__(self, pattern: str) -> None:
        self._words = pattern.split(".") if pattern else []
        self._known: dict[str, bool] = {}

    def rows(self, batch: pa.RecordBatch, counts: Counts) -> list[int]:
        known = self._known
        found: list[int] = []
        for row, key in enumerate(batch.column("routing_key").to_pylist()):
            matches = known.get(key)
            if matches is None:
                if len(known) > 100_000:
                    known.clear()
                matches = known[key] = _matches(self._words, key.split(".") if key else [])
            if matches:
                found.append(row)
        return found


def _matches(pattern: list[str], words: list[str]) -> bool:
    """Match words against a pattern in which `*` is one word and `#` any number of words."""
    reached = _skip_wildcards(pattern, {0})
    for word in words:
        following: set[int] = set()
        for at in reached:
            if at < len(pattern):
                if pattern[at] == "#":
                    following.add(at)
                elif pattern[at] in ("*", word):
                    following.add(at + 1)
        reached = _skip_wildcards(pattern, following)
    return len(pattern) in reached


def _skip_wildcards(pattern: list[str], places: set[int]) -> set[int]:
    """Add the positions after each `#`, which may match zero words."""
    found = set(places)
    for place in places:
        while place < len(pattern) and pattern[place] == "#":
            place += 1
            found.add(place)
    return found


class _Headers:
    def __init__(self, wanted: dict[str, str | None]) -> None:
        self._wanted = wanted

    def rows(self, batch: pa.RecordBatch, counts: Counts) -> list[int]:
        wanted = self._wanted.items()
        found: list[int] = []
        for row, pairs in enumerate(batch.column("headers").to_pylist()):
            headers = dict(pairs or ())
            if all(name in headers and value in (None, headers[name]) for name, value in wanted):
                found.append(row)
        return found


class _Selector:
    def __init__(self, text: str) -> None:
        self._filter = sql_filter(text)

    def rows(self, batch: pa.RecordBatch, counts: Counts) -> list[int]:
        view = row_view.RowView()
        found: list[int] = []
        for number, row in enumerate(batch.select(list(row_view.COLUMNS)).to_pylist()):
            view.bind(row)
            if self._filter.matches(view):
                found.append(number)
        return found


class _Body:
    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = [(JsonPath(path), text) for path, text in wanted.items()]

    def rows(self, batch: pa.RecordBatch, counts: Counts) -> list[int]:
        found: list[int] = []
        encodings = batch.column("content_encoding").to_pylist()
        for row, body in enumerate(batch.column("body").to_pylist()):
            content = decompress(body, encodings[row])
            try:
                document = msgspec.json.decode(b"" if content is None else content)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                counts.unreadable += 1
                continue
            if all(any(_text(value) == text for value in path.values(document)) for path, text in self._wanted):
                found.append(row)
        return found


def _text(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8")
