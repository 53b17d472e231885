"""Masking of personal data in bodies and headers, by rules. Plain Python, for single messages."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Sequence
from typing import Literal

from leveret.security.patterns import Pattern
from leveret.segments.typed_json import Document, Json, JsonObject
from leveret.spark.pipeline.model import Section

# Hexadecimal digits of a hash, i.e. 128 bits.
HASH_DIGITS = 32


class Rule(Section, frozen=True):
    """A mask: its target (exactly one of the first four keys) and its replacement."""

    # Path into a JSON body: "customer.email", "items[].name"; "*" matches any key.
    field: str | None = None
    header: str | None = None
    # A property, such as user_id.
    property: str | None = None
    # Regular expression for the body as text.
    pattern: str | None = None
    action: Literal["hash", "mask", "drop", "replace"] = "mask"
    replacement: str = "***"


class _Dropped:
    """Marks a removed value; a class, because its identity survives pickling into another process."""


_WORD_CHARACTER = re.compile(r"\w")

Mask = Callable[[Json], Document]


def mask_of(rule: Rule, key: bytes) -> Mask:
    """Return a function from a value to its mask, or to `_Dropped`. Values that are not text are masked as their JSON."""
    if rule.action == "drop":
        return lambda value: _Dropped
    if rule.action == "replace":
        return lambda value: rule.replacement
    if rule.action == "hash":
        return lambda value: hmac.new(key, _text(value).encode(), hashlib.sha256).hexdigest()[:HASH_DIGITS]
    # Letters and digits are replaced, which leaves the format visible.
    return lambda value: _WORD_CHARACTER.sub("*", _text(value))


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


class BodyMasker:
    """Masks bodies by rules about JSON fields and about patterns in the text.

    Args:
        rules: The rules.
        key: Key of the hashes.
    """

    def __init__(self, rules: Sequence[Rule], key: bytes) -> None:
        self._fields = [(path_of(rule.field), mask_of(rule, key)) for rule in rules if rule.field is not None]
        self._patterns = [(Pattern(rule.pattern), mask_of(rule, key)) for rule in rules if rule.pattern is not None]

    def __call__(self, body: bytes) -> bytes:
        """Return the masked body; unchanged if no rule matches.

        Raises:
            ValueError: A rule names a field, and the body is not JSON or has duplicate fields.
        """
        if self._fields:
            value = json.loads(body, object_pairs_hook=_unique_keys)
            if sum(mask_path(value, path, mask) for path, mask in self._fields):
                body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        if self._patterns:
            try:
                text, encoding = body.decode("utf-8"), "utf-8"
            except UnicodeDecodeError:
                text, encoding = body.decode("latin-1"), "latin-1"
            for pattern, mask in self._patterns:
                text = pattern.replace(_text_replacement(mask), text)
            body = text.encode(encoding, "replace")
        return body


def _unique_keys(pairs: list[tuple[str, Json]]) -> JsonObject:
    """Build an object. With duplicate fields, only one would be masked while both are passed on."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("the body has duplicate fields")
    return value


def _text_replacement(mask: Mask) -> Callable[[str], str]:
    def masked(found: str) -> str:
        value = mask(found)
        return "" if value is _Dropped else str(value)

    return masked


def path_of(text: str) -> list[str]:
    """Split customer.items[].name into its steps: customer, items, [], name."""
    return [step for step in text.replace("[]", ".[]").split(".") if step]


def mask_path(value: Json, path: Sequence[str], mask: Mask) -> int:
    """Mask the values at a path in place; return how many places matched."""
    step, rest = path[0], path[1:]
    if step == "[]":
        if not isinstance(value, list):
            return 0
        if rest:
            return sum(mask_path(item, rest, mask) for item in value)
        value[:] = [masked for item in value if (masked := mask(item)) is not _Dropped]
        return 1
    if not isinstance(value, dict):
        return 0
    keys = list(value) if step == "*" else [step] if step in value else []
    if rest:
        return sum(mask_path(value[key], rest, mask) for key in keys)
    for key in keys:
        if value[key] is None:
            continue
        masked = mask(value[key])
        if masked is _Dropped:
            del value[key]
        else:
            value[key] = masked
    return len(keys)


class HeadersMasker:
    """Masks headers as typed JSON (`headers_json`, and application properties of 1.0)."""

    def __init__(self, rules: Sequence[Rule], key: bytes) -> None:
        self._rules = [(rule.header, mask_of(rule, key)) for rule in rules if rule.header is not None]

    def __call__(self, headers: str) -> str:
        value = json.loads(headers)
        met = [mask_path(value, [name], mask) for name, mask in self._rules if name is not None]
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if any(met) else headers


def mask_text(value: str, mask: Mask) -> str | None:
    """Mask a property; None if it is dropped."""
    masked = mask(value)
    return None if masked is _Dropped else str(masked)
