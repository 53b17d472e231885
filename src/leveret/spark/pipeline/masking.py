"""Masking of personal data in bodies and headers, rule by rule. Plain Python, for single messages."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from leveret.security.patterns import Pattern
from leveret.spark.pipeline.model import Rule

# Hexadecimal digits of a hash: 128 bits.
HASH_DIGITS = 32


class _DROPPED:
    """Stands for a value that is taken away; a class, so that it stays the same one in another process."""


_SIGN = re.compile(r"\w")

Mask = Callable[[Any], Any]


def mask_of(rule: Rule, key: bytes) -> Mask:
    """What turns a value into what stands in its place, or into `_DROPPED`. What is no text is masked as its JSON."""
    if rule.action == "drop":
        return lambda value: _DROPPED
    if rule.action == "replace":
        return lambda value: rule.replacement
    if rule.action == "hash":
        return lambda value: hmac.new(key, _text(value).encode(), hashlib.sha256).hexdigest()[:HASH_DIGITS]
    # Letters and digits go, so that what remains shows the form only.
    return lambda value: _SIGN.sub("*", _text(value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


class BodyMasker:
    """Masks bodies by rules over fields of JSON and over patterns in text.

    key  of the hashes
    """

    def __init__(self, rules: Sequence[Rule], key: bytes) -> None:
        self._fields = [(path_of(rule.field), mask_of(rule, key)) for rule in rules if rule.field is not None]
        self._patterns = [(Pattern(rule.pattern), mask_of(rule, key)) for rule in rules if rule.pattern is not None]

    def __call__(self, body: bytes) -> bytes:
        """The masked body; what no rule meets is returned as it came. ValueError for a body that is no JSON, or has a field
        twice, where a rule names a field."""
        if self._fields:
            value = json.loads(body, object_pairs_hook=_once)
            if sum(mask_path(value, path, mask) for path, mask in self._fields):
                body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        if self._patterns:
            try:
                text, encoding = body.decode("utf-8"), "utf-8"
            except UnicodeDecodeError:
                text, encoding = body.decode("latin-1"), "latin-1"
            for pattern, mask in self._patterns:
                text = pattern.replace(_within_text(mask), text)
            body = text.encode(encoding, "replace")
        return body


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Of a field that is there twice only one would be looked at, and both would be passed on."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a field is there twice")
    return value


def _within_text(mask: Mask) -> Callable[[str], str]:
    def masked(found: str) -> str:
        value = mask(found)
        return "" if value is _DROPPED else str(value)

    return masked


def path_of(text: str) -> list[str]:
    """customer.items[].name as its steps: customer, items, [], name."""
    return [step for step in text.replace("[]", ".[]").split(".") if step]


def mask_path(value: Any, path: Sequence[str], mask: Mask) -> int:
    """Mask in place what a path leads to; at how many places there was something."""
    step, rest = path[0], path[1:]
    if step == "[]":
        if not isinstance(value, list):
            return 0
        if rest:
            return sum(mask_path(item, rest, mask) for item in value)
        value[:] = [masked for item in value if (masked := mask(item)) is not _DROPPED]
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
        if masked is _DROPPED:
            del value[key]
        else:
            value[key] = masked
    return len(keys)


class HeadersMasker:
    """Masks headers in their typed JSON (`headers_json`, and application properties of 1.0)."""

    def __init__(self, rules: Sequence[Rule], key: bytes) -> None:
        self._rules = [(rule.header, mask_of(rule, key)) for rule in rules if rule.header is not None]

    def __call__(self, headers: str) -> str:
        value = json.loads(headers)
        met = [mask_path(value, [name], mask) for name, mask in self._rules if name is not None]
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if any(met) else headers


def mask_text(value: str, mask: Mask) -> str | None:
    """A property; None where it is dropped."""
    masked = mask(value)
    return None if masked is _DROPPED else str(masked)
