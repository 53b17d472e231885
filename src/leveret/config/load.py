"""Reading the configuration: file < environment < flags.

Every refusal names the source, the key, what was wrong and what was expected.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from leveret.config.check import check
from leveret.config.errors import ConfigError
from leveret.config.model import Config
from leveret.config.schema import Key, Table, schema_of
from leveret.config.values import READERS

__all__ = ["ConfigError", "combine_config", "load_config"]

PREFIX = "LEVERET_"
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


@dataclass(slots=True)
class _Tree:
    """Raw values by path, with where each came from. Text (of environment and flags) is read by the key's type."""

    values: dict[tuple[str, ...], Any] = field(default_factory=dict)
    sources: dict[tuple[str, ...], str] = field(default_factory=dict)
    bases: dict[tuple[str, ...], str] = field(default_factory=dict)

    def put(self, path: tuple[str, ...], value: Any, source: str, base: str) -> None:
        self.values[path] = value
        self.sources[path] = source
        self.bases[path] = base


def load_config(path: str | os.PathLike[str] | None = None, environment: Mapping[str, str] | None = None,
                flags: Sequence[tuple[str, str]] = ()) -> Config:
    """The configuration from a TOML file, `LEVERET_SECTION__KEY` variables and flags.

    flags are pairs of a dotted key in TOML's notation and a text. Raises `ConfigError`.
    """
    environment = os.environ if environment is None else environment
    root = schema_of(Config)
    tree = _Tree()
    if path is not None:
        _read_file(Path(path), root, tree)
    _read_environment(environment, root, tree)
    for key, text in flags:
        _read_flag(key, text, root, tree)
    return _checked(root, tree)


def combine_config(*layers: tuple[str, Mapping[str, Any] | Path]) -> Config:
    """The configuration from tables and TOML files, later ones winning key by key; the environment says nothing.

    A layer is what to call it in a refusal, and either a table of the file's structure, with Python's values for TOML's
    and paths where the file has texts, or the path of a file. A relative path in a table starts at the working
    directory. Raises `ConfigError`.
    """
    root = schema_of(Config)
    tree = _Tree()
    for name, layer in layers:
        if isinstance(layer, Path):
            _read_file(layer, root, tree)
        else:
            _flatten(layer, root, (), name, os.getcwd(), tree)
    return _checked(root, tree)


def _checked(root: Table, tree: _Tree) -> Config:
    built = _build(root, (), tree)
    assert isinstance(built, Config)
    check(built, lambda key: _source_of(key, tree))
    return built


def _source_of(path: tuple[str, ...], tree: _Tree) -> str:
    while path:
        if path in tree.sources:
            return tree.sources[path]
        for known, source in tree.sources.items():
            if known[: len(path)] == path:
                return source
        path = path[:-1]
    return "configuration"


# Sources


def _read_file(path: Path, root: Table, tree: _Tree) -> None:
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: the configuration file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (octet {error.start}); a configuration file is TOML in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    _flatten(raw, root, (), str(path), str(path.parent.absolute()), tree)


def _read_environment(environment: Mapping[str, str], root: Table, tree: _Tree) -> None:
    for name in sorted(environment):
        if not name.startswith(PREFIX):
            continue
        words = name[len(PREFIX) :].split("__")
        if len(words) == 1:
            # No key: LEVERET_CONFIG and the like. But a key written with one underscore is a mistake to be told about.
            section, _, key = words[0].partition("_")
            if section.lower() in root.keys:
                raise ConfigError(
                    f"environment variable {name}: expected section and key with two underscores between them, "
                    f"as in {PREFIX}{section}__{key or 'KEY'}"
                )
            continue
        path = _path_of_words(words, root)
        _flatten_text(environment[name], root, path, f"environment variable {name}", tree)


def _path_of_words(words: list[str], root: Table) -> tuple[str, ...]:
    """Fixed words are written in any case; the names of users and vhosts as they are."""
    path: list[str] = []
    node: Table | Key | None = root
    for word in words:
        if isinstance(node, Table) and node.each is not None:
            path.append(word)
            node = node.each
        else:
            path.append(word.lower())
            node = node.keys.get(word.lower()) if isinstance(node, Table) else None
    return tuple(path)


def _read_flag(key: str, text: str, root: Table, tree: _Tree) -> None:
    try:
        nested: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"flag {key!r}: not a key; expected one such as server.port or users.\"a.b\".tags") from None
    path: list[str] = []
    while isinstance(nested, dict):
        word, nested = next(iter(nested.items()))
        path.append(word)
    _flatten_text(text, root, tuple(path), f"flag {key}", tree)


def _flatten_text(text: str, root: Table, path: tuple[str, ...], source: str, tree: _Tree) -> None:
    """A value that came as text: a whole table is TOML, the rest is read by the key's type."""
    node = _find(root, path, source)
    value: Any = text
    if isinstance(node, Table):
        value = _toml_value(text, path, source, f"a TOML table such as {{ {next(iter(node.keys), 'name')} = ... }}")
    elif node.of is bool:
        lowered = text.strip().lower()
        value = True if lowered in _TRUE else False if lowered in _FALSE else text
    elif node.is_list:
        value = (_toml_value(text, path, source, node.expected) if text.strip().startswith("[")
                 else [part.strip() for part in text.split(",") if part.strip()])
    elif node.of is int and node.kind == "":
        value = _number(text, int)
    elif node.of is float and node.kind == "":
        value = _number(text, float)
    _flatten(value, root, path, source, os.getcwd(), tree)


def _number(text: str, kind: type[int] | type[float]) -> int | float | str:
    try:
        return kind(text)
    except ValueError:
        return text


def _toml_value(text: str, path: tuple[str, ...], source: str, expected: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"{source}: {dotted(path)}: got {text!r}, expected {expected}") from None


def _find(root: Table, path: tuple[str, ...], source: str) -> Table | Key:
    node: Table | Key = root
    for depth, word in enumerate(path):
        if isinstance(node, Key):
            raise ConfigError(f"{source}: {dotted(path[:depth])} is a single value and has no key {word!r}")
        if node.each is not None:
            node = node.each
        elif word in node.keys:
            node = node.keys[word]
        else:
            raise unknown_key(source, path[: depth + 1], node, root)
    return node


def _flatten(value: Any, root: Table, path: tuple[str, ...], source: str, base: str, tree: _Tree) -> None:
    node = _find(root, path, source)
    if isinstance(node, Key):
        tree.put(path, value, source, base)
        return
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {dotted(path) or 'the configuration'}: got {value!r}, expected a table")
    # An empty table is something too: a user without anything.
    if node.struct is not None and path:
        tree.put((*path, ""), None, source, base)
    for key, inner in value.items():
        if not isinstance(key, str):
            raise ConfigError(f"{source}: {dotted(path) or 'the configuration'} has the key {key!r}, expected a text")
        _flatten(inner, root, (*path, key), source, base, tree)


# Refusals


def dotted(path: Sequence[str]) -> str:
    """A path in TOML's notation: parts that are no bare keys are quoted."""
    return ".".join(part if part.replace("-", "").replace("_", "").isalnum() and part.isascii() else f'"{part}"'
                    for part in path)


def unknown_key(source: str, path: tuple[str, ...], table: Table, root: Table) -> ConfigError:
    """The refusal of a key that does not exist, with the nearest one that does."""
    import difflib  # only here: it takes part of the time to start

    near = difflib.get_close_matches(path[-1], list(table.keys), 1, 0.6)
    if near:
        hint = f"did you mean {dotted((*path[:-1], near[0]))}?"
    else:
        elsewhere = [dotted((*prefix, path[-1])) for prefix in _holders(root, path[-1], ())]
        hint = f"did you mean {elsewhere[0]}?" if elsewhere else "known here: " + ", ".join(sorted(table.keys))
    return ConfigError(f"{source}: unknown key {dotted(path)}; {hint}")


def _holders(table: Table, key: str, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if key in table.keys:
        yield path
    for name, inner in table.keys.items():
        if isinstance(inner, Table) and inner.each is None:
            yield from _holders(inner, key, (*path, name))


# Values to structs


def _build(table: Table, path: tuple[str, ...], tree: _Tree) -> Any:
    depth = len(path)
    present = {known[depth]: None for known in tree.values if known[:depth] == path and len(known) > depth}
    built: dict[str, Any] = {}
    for name in present:
        if not name and table.struct is not None:
            continue  # the mark of an empty table
        node = table.each if table.each is not None else table.keys[name]
        inner = (*path, name)
        built[name] = _build(node, inner, tree) if isinstance(node, Table) else _read(node, inner, tree)
    return built if table.struct is None else table.struct(**built)


def _read(key: Key, path: tuple[str, ...], tree: _Tree) -> Any:
    value = tree.values[path]
    try:
        if key.kind:
            value = READERS[key.kind](value, tree.bases[path])
        return msgspec.convert(value, key.type)
    except (ValueError, TypeError):
        shown = "a value of type " + type(value).__name__ if key.secret else repr(value)
        raise ConfigError(f"{tree.sources[path]}: {dotted(path)}: got {shown}, expected {key.expected}") from None
