"""The structs of `model` as a tree of tables and keys, for the loader and the documentation."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, Union

import msgspec

from leveret.config.values import READERS

_WORDS = {
    "size": 'octets (a number, or a text such as "64MiB")',
    "seconds": 'seconds (a number, or a text such as "30s")',
    "watermark": 'a share (0.4 or "40%") or octets ("2GiB")',
    "path": "a path",
    "place": "a path, or a URL",
}


@dataclass(slots=True)
class Key:
    """One key: its full type for msgspec, its bare type, its reader, and what is expected in words."""

    name: str
    type: Any
    of: Any
    kind: str
    is_list: bool
    secret: bool
    default: Any
    description: str
    expected: str


@dataclass(slots=True)
class Table:
    """A table: with fixed keys (`struct`), or one with free names (`each`)."""

    name: str
    struct: type[msgspec.Struct] | None
    keys: dict[str, Key | Table] = field(default_factory=dict)
    each: Table | None = None


def schema_of(struct: type[msgspec.Struct], name: str = "") -> Table:
    """The table of a struct."""
    table = Table(name, struct)
    for info in msgspec.structs.fields(struct):
        bare, metas = _strip(info.type)
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            table.keys[info.name] = schema_of(bare, info.name)
        elif typing.get_origin(bare) is dict:
            inner = typing.get_args(bare)[1]
            table.keys[info.name] = Table(info.name, None, {}, schema_of(inner, "NAME"))
        else:
            default = info.default_factory() if info.default is msgspec.NODEFAULT else info.default
            table.keys[info.name] = _key(info.name, info.type, bare, metas, default)
    return table


def _key(name: str, full: Any, bare: Any, metas: list[msgspec.Meta], default: Any) -> Key:
    kind = next((meta.extra["kind"] for meta in metas if meta.extra and "kind" in meta.extra), "")
    assert not kind or kind in READERS
    description = next((meta.description for meta in reversed(metas) if meta.description), "")
    return Key(name, full, bare, kind, typing.get_origin(bare) is list, name in ("password", "password_hash"), default,
               description, _expected(bare, kind, metas))


def _strip(annotation: Any) -> tuple[Any, list[msgspec.Meta]]:
    """The type without `Annotated` and without None, and the `Meta`s found on the way."""
    metas: list[msgspec.Meta] = []
    while True:
        if hasattr(annotation, "__metadata__"):
            metas = [meta for meta in annotation.__metadata__ if isinstance(meta, msgspec.Meta)] + metas
            annotation = annotation.__origin__
        elif typing.get_origin(annotation) in (Union, types.UnionType):
            annotation = next(one for one in typing.get_args(annotation) if one is not type(None))
        else:
            return annotation, metas


def _expected(bare: Any, kind: str, metas: list[msgspec.Meta]) -> str:
    if typing.get_origin(bare) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in typing.get_args(bare))
    if typing.get_origin(bare) is list:
        inner, inner_metas = _strip(typing.get_args(bare)[0])
        expected = _expected(inner, "", inner_metas)
        return "a list of " + (expected.removeprefix("one of ") if expected.startswith("one of") else "texts")
    low = max((bound for meta in metas for bound in (meta.ge, meta.gt) if bound is not None), default=None)
    high = min((meta.le for meta in metas if meta.le is not None), default=None)
    above = any(meta.gt is not None for meta in metas)
    words = _WORDS.get(kind)
    if words is None:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[bare]
    if bare is str or bare is bool or kind == "watermark":
        longest = next((meta.max_length for meta in metas if meta.max_length), None)
        return f"{words} of 1 to {longest} characters" if longest else words
    if low is not None and high is not None:
        return f"{words}, {low} to {high}"
    if low is not None and (low or above):
        return f"{words}, {'more than' if above else 'at least'} {low}"
    return words
