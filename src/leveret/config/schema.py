"""A tree of tables and keys built from the structs of `model`, for the loader and the generated documentation."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, Union

import msgspec

from leveret.config.values import READERS, Setting

# The valid names of a choice ("engine", "mechanism"), from the registry of its package.
Choices: TypeAlias = Mapping[str, Sequence[str]]

_EXPECTED_BY_KIND = {
    "size": 'bytes (a number, or a string such as "64MiB")',
    "seconds": 'seconds (a number, or a string such as "30s")',
    "watermark": 'a fraction (0.4 or "40%") or bytes ("2GiB")',
    "path": "a path",
    "path_or_url": "a path or URL",
    "http_url": "a URL that begins with http:// or https://",
    "shards": '"auto" or an integer',
    "uris": "a URI, or a list of URIs",
    "table": "a table",
}
_SECRETS = ("password", "password_hash", "dsn", "src_uri", "dest_uri")
_EXPECTED_BY_TYPE = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


@dataclass(slots=True)
class Key:
    """One setting.

    Attributes:
        name: The last part of the setting's name.
        type: The annotated type, for msgspec.
        of: The type without annotations and without None.
        kind: The name of its reader in `values`, or "".
        is_list: Whether the value is a list.
        secret: Whether error messages must not show the value.
        default: The default value.
        description: The setting's meaning, for the documentation.
        expected: The valid values in words, for error messages and the documentation.
    """

    name: str
    type: Any
    of: Any
    kind: str
    is_list: bool
    secret: bool
    default: Setting
    description: str
    expected: str


@dataclass(slots=True)
class Table:
    """A table with fixed keys (`struct`), or with user-chosen keys whose values `each` describes."""

    name: str
    struct: type[msgspec.Struct] | None
    keys: dict[str, Key | Table] = field(default_factory=dict)
    each: Table | None = None


def schema_of(struct: type[msgspec.Struct], choices: Choices, name: str = "") -> Table:
    """Return the table of a struct. A choice that `choices` does not have may be any string."""
    table = Table(name, struct)
    for info in msgspec.structs.fields(struct):
        bare, metas = _strip(info.type)
        kind = _kind(metas)
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            table.keys[info.name] = schema_of(bare, choices, info.name)
        elif typing.get_origin(bare) is dict and kind != "table":
            inner = typing.get_args(bare)[1]
            table.keys[info.name] = Table(info.name, None, {}, schema_of(inner, choices, "NAME"))
        else:
            default = info.default_factory() if info.default is msgspec.NODEFAULT else info.default
            table.keys[info.name] = _key(info.name, _chosen(info.type, choices), metas, default)
    return table


def _chosen(annotation: Any, choices: Choices) -> Any:
    """Return the type of a setting, with the names of its choice."""
    bare, metas = _strip(annotation)
    if typing.get_origin(bare) is list:
        return list[_chosen(typing.get_args(bare)[0], choices)]  # type: ignore[misc]
    choice = next((meta.extra["choice"] for meta in metas if meta.extra and "choice" in meta.extra), "")
    return Literal[tuple(choices[choice])] if choice in choices else annotation


def _kind(metas: list[msgspec.Meta]) -> str:
    return next((meta.extra["kind"] for meta in metas if meta.extra and "kind" in meta.extra), "")


def _key(name: str, full: Any, metas: list[msgspec.Meta], default: Setting) -> Key:
    bare, _ = _strip(full)
    kind = _kind(metas)
    assert not kind or kind in READERS
    description = next((meta.description for meta in reversed(metas) if meta.description), "")
    return Key(
        name,
        full,
        bare,
        kind,
        typing.get_origin(bare) is list,
        name in _SECRETS,
        default,
        description,
        _expected(bare, kind, metas),
    )


def _strip(annotation: Any) -> tuple[Any, list[msgspec.Meta]]:
    """Return the type without `Annotated` and None, and the removed `Meta` objects."""
    metas: list[msgspec.Meta] = []
    while True:
        if hasattr(annotation, "__metadata__"):
            metas = [meta for meta in annotation.__metadata__ if isinstance(meta, msgspec.Meta)] + metas
            annotation = annotation.__origin__
        elif typing.get_origin(annotation) in (Union, types.UnionType):
            annotation = next(member for member in typing.get_args(annotation) if member is not type(None))
        else:
            return annotation, metas


def _expected(bare: Any, kind: str, metas: list[msgspec.Meta]) -> str:
    if typing.get_origin(bare) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in typing.get_args(bare))
    if typing.get_origin(bare) is list and not kind:
        inner, inner_metas = _strip(typing.get_args(bare)[0])
        expected = _expected(inner, "", inner_metas)
        return "a list of " + (expected.removeprefix("one of ") if expected.startswith("one of") else "strings")
    low = max((bound for meta in metas for bound in (meta.ge, meta.gt) if bound is not None), default=None)
    high = min((meta.le for meta in metas if meta.le is not None), default=None)
    above = any(meta.gt is not None for meta in metas)
    expected = _EXPECTED_BY_KIND.get(kind) or _EXPECTED_BY_TYPE[bare]
    if bare is str or bare is bool or kind == "watermark":
        max_length = next((meta.max_length for meta in metas if meta.max_length), None)
        return f"{expected} of 1 to {max_length} characters" if max_length else expected
    if low is not None and high is not None:
        return f"{expected}, {low} to {high}"
    if low is not None and (low or above):
        return f"{expected}, {'more than' if above else 'at least'} {low}"
    return expected
