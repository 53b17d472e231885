"""Loading of the configuration. Flags override the environment, which overrides the file.

Every error names the source, the setting, the invalid value and what was expected. A `ConfigError` has all errors, one per
line.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from leveret._text import decode_text
from leveret.config.check import conflicts
from leveret.config.errors import ConfigError
from leveret.config.foreign import foreign_format, is_rabbitmq_conf
from leveret.config.model import Config
from leveret.config.renamed import RENAMED_SETTINGS, refuse_renamed
from leveret.config.schema import Choices, Key, Table, schema_of
from leveret.config.values import READERS, Setting

__all__ = ["ConfigError", "Flags", "combine_config", "load_config", "trace_config"]

PREFIX = "LEVERET_"
# The source of settings of the command line, unless they have a flag of their own.
FLAG = "--set"
# Settings of the command line: a dotted key in TOML notation, a value as text, and the flag, by default `FLAG`.
Flags: TypeAlias = Sequence[tuple[str, str] | tuple[str, str, str]]
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


@dataclass(slots=True)
class _Tree:
    """Raw values by path, with the source and the base directory for relative paths of each."""

    values: dict[tuple[str, ...], Setting] = field(default_factory=dict)
    sources: dict[tuple[str, ...], str] = field(default_factory=dict)
    bases: dict[tuple[str, ...], str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep the error of a block, so that the loader reports it with all others."""
        try:
            yield
        except ConfigError as error:
            self.errors.append(str(error))

    def put(self, path: tuple[str, ...], value: Setting, source: str, base: str) -> None:
        self.values[path] = value
        self.sources[path] = source
        self.bases[path] = base


def load_config(
    path: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Flags = (),
    *,
    choices: Choices = MappingProxyType({}),
) -> Config:
    """Load the configuration from a TOML file, `LEVERET_SECTION__KEY` variables and flags.

    Args:
        path: The TOML file, if any.
        environment: The environment variables. Default: `os.environ`.
        flags: Settings of the command line.
        choices: The valid names of engines and mechanisms. Without them, any name is valid.

    Raises:
        ConfigError: A setting is unknown or invalid, or the file cannot be read.
    """
    return trace_config(path, environment, flags, choices=choices)[0]


def trace_config(
    path: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Flags = (),
    *,
    choices: Choices = MappingProxyType({}),
) -> tuple[Config, dict[str, str]]:
    """Load the configuration as `load_config` does. Returns it, and the source of each setting that is not a default.

    The arguments and exceptions are those of `load_config`.
    """
    environment = os.environ if environment is None else environment
    root = schema_of(Config, choices)
    tree = _Tree()
    if path is not None:
        with tree.collecting():
            _read_file(Path(path), root, tree)
    _read_environment(environment, root, tree)
    for key, text, *flag in flags:
        with tree.collecting():
            _read_flag(key, text, root, tree, *flag)
    config = _checked(root, tree, choices)
    return config, {dotted(known): source for known, source in tree.sources.items() if known[-1]}


def combine_config(*layers: tuple[str, Mapping[str, Setting] | Path], choices: Choices = MappingProxyType({})) -> Config:
    """Combine tables and TOML files. A later layer overrides single keys of earlier ones. Ignores the environment.

    Args:
        *layers: Pairs of a name for error messages, and either the path of a TOML file or a table with the structure of
            the file. A table may contain `Path` objects; its relative paths are relative to the working directory.
        choices: The valid names of engines and mechanisms. Without them, any name is valid.

    Raises:
        ConfigError: A setting is unknown or invalid, or a file cannot be read.
    """
    root = schema_of(Config, choices)
    tree = _Tree()
    for name, layer in layers:
        with tree.collecting():
            if isinstance(layer, Path):
                _read_file(layer, root, tree)
            else:
                _flatten(layer, root, (), name, os.getcwd(), tree)
    return _checked(root, tree, choices)


def _checked(root: Table, tree: _Tree, choices: Choices) -> Config:
    built = _build(root, (), tree)
    assert isinstance(built, Config)
    # The default replaces an invalid value, so that conflicts with it would be misleading.
    problems = tree.errors or list(conflicts(built, lambda key: _source_of(key, tree), choices))
    if problems:
        raise ConfigError("\n".join(problems))
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
        text = decode_text(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration file: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; expected TOML in UTF-8") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {foreign_format(text, str(path)) or f'invalid TOML: {error}'}") from None
    if is_rabbitmq_conf(text):
        raise ConfigError(f"{path}: {foreign_format(text, str(path))}")
    _flatten(raw, root, (), str(path), str(path.parent.absolute()), tree)


def _read_environment(environment: Mapping[str, str], root: Table, tree: _Tree) -> None:
    for name in sorted(environment):
        if not name.startswith(PREFIX):
            continue
        words = name[len(PREFIX) :].split("__")
        with tree.collecting():
            if len(words) == 1:
                _refuse_single_underscore(name, words[0], root)
            else:
                path = _path_of_words(words, root)
                _flatten_text(environment[name], root, path, f"environment variable {name}", tree)


def _refuse_single_underscore(name: str, word: str, root: Table) -> None:
    """Raise `ConfigError` for LEVERET_SERVER_PORT. LEVERET_CONFIG and the like are not settings."""
    for section in (*root.keys, *RENAMED_SETTINGS):
        if f"{word}_".lower().startswith(f"{section}_"):
            key = word[len(section) + 1 :] or "KEY"
            raise ConfigError(
                f"environment variable {name}: expected two underscores between section and key, "
                f"as in {PREFIX}{word[: len(section)]}__{key}"
            )


def _path_of_words(words: list[str], root: Table) -> tuple[str, ...]:
    """Return the path of a setting. Only names chosen by the user, such as those of vhosts, are case-sensitive."""
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


def _read_flag(key: str, text: str, root: Table, tree: _Tree, flag: str = FLAG) -> None:
    try:
        nested: Setting = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        raise ConfigError(
            f'{flag} {key!r}: invalid setting name; expected a name such as server.port or users."a.b".tags'
        ) from None
    path: list[str] = []
    while isinstance(nested, dict):
        word, nested = next(iter(nested.items()))
        path.append(word)
    _flatten_text(text, root, tuple(path), flag, tree)


def _flatten_text(text: str, root: Table, path: tuple[str, ...], source: str, tree: _Tree) -> None:
    """Store a value given as text. A table is parsed as TOML, any other value by the type of the setting."""
    refuse_renamed(path, text, source)
    node = _find(root, path, source)
    value: Setting = text
    if isinstance(node, Table):
        value = _toml_value(text, path, source, f"a TOML table such as {{ {next(iter(node.keys), 'name')} = ... }}")
    elif node.of is bool:
        lowered = text.strip().lower()
        value = True if lowered in _TRUE else False if lowered in _FALSE else text
    elif node.is_list:
        value = (
            _toml_value(text, path, source, node.expected)
            if text.strip().startswith("[")
            else [part.strip() for part in text.split(",") if part.strip()]
        )
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


def _toml_value(text: str, path: tuple[str, ...], source: str, expected: str) -> Setting:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"{source}: {dotted(path)}: got {text!r}, expected {expected}") from None


def _find(root: Table, path: tuple[str, ...], source: str) -> Table | Key:
    node: Table | Key = root
    for depth, word in enumerate(path):
        if isinstance(node, Key):
            raise ConfigError(f"{source}: '{dotted(path[:depth])}' is not a table and has no key {word!r}")
        if node.each is not None:
            node = node.each
        elif word in node.keys:
            node = node.keys[word]
        else:
            raise unknown_key(source, path[: depth + 1], node, root)
    return node


def _flatten(value: Setting, root: Table, path: tuple[str, ...], source: str, base: str, tree: _Tree) -> None:
    refuse_renamed(path, value, source)
    node = _find(root, path, source)
    if isinstance(node, Key):
        tree.put(path, value, source, base)
        return
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {dotted(path) or 'the configuration'}: got {value!r}, expected a table")
    # Store an empty table too, such as a user without any settings.
    if node.struct is not None and path:
        tree.put((*path, ""), None, source, base)
    for key, inner in value.items():
        if not isinstance(key, str):
            raise ConfigError(f"{source}: {dotted(path) or 'the configuration'} has the key {key!r}, expected a string")
        with tree.collecting():
            _flatten(inner, root, (*path, key), source, base, tree)


# Errors


def dotted(path: Sequence[str]) -> str:
    """Return a path in TOML notation. Quotes parts that are not bare keys."""
    return ".".join(
        part if part.replace("-", "").replace("_", "").isalnum() and part.isascii() else f'"{part}"' for part in path
    )


def unknown_key(source: str, path: tuple[str, ...], table: Table, root: Table) -> ConfigError:
    """Return the error for an unknown setting, with the closest known one."""
    import difflib  # not at module level, to start faster

    near = difflib.get_close_matches(path[-1], list(table.keys), 1, 0.6)
    if near:
        hint = f"did you mean '{dotted((*path[:-1], near[0]))}'?"
    else:
        elsewhere = [dotted((*prefix, path[-1])) for prefix in _tables_with(key=path[-1], table=root, path=())]
        hint = f"did you mean '{elsewhere[0]}'?" if elsewhere else "expected one of " + ", ".join(sorted(table.keys))
    return ConfigError(f"{source}: unknown setting '{dotted(path)}': {hint}")


def _tables_with(key: str, table: Table, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if key in table.keys:
        yield path
    for name, inner in table.keys.items():
        if isinstance(inner, Table) and inner.each is None:
            yield from _tables_with(key, inner, (*path, name))


# Values to structs


def _build(table: Table, path: tuple[str, ...], tree: _Tree) -> Setting:
    depth = len(path)
    present = {known[depth]: None for known in tree.values if known[:depth] == path and len(known) > depth}
    built: dict[str, Setting] = {}
    for name in present:
        if not name and table.struct is not None:
            continue  # marks an empty table
        node = table.each if table.each is not None else table.keys[name]
        inner = (*path, name)
        with tree.collecting():
            built[name] = _build(node, inner, tree) if isinstance(node, Table) else _read(node, inner, tree)
    return built if table.struct is None else table.struct(**built)


def _read(key: Key, path: tuple[str, ...], tree: _Tree) -> Setting:
    value = tree.values[path]
    try:
        if key.kind:
            value = READERS[key.kind](value, tree.bases[path])
        return msgspec.convert(value, key.type)
    except (ValueError, TypeError):
        shown = "a value of type " + type(value).__name__ if key.secret else repr(value)
        raise ConfigError(f"{tree.sources[path]}: {dotted(path)}: got {shown}, expected {key.expected}") from None
