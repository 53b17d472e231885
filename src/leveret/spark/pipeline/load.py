"""Reads a pipeline.toml. Every error names the file, the line, the key, the problem and the expected value."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from leveret._text import field_error
from leveret.segments.typed_json import Document
from leveret.spark.pipeline import model
from leveret.spark.pipeline.checks import check_flow
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.kinds.registry import DEFAULT_KIND, KINDS

_AT_PATH = re.compile(r" - at `([^`]*)`\Z")
_PART = re.compile(r"\.([\w-]+)|\[(\d+)\]|\[(\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")

_Path = tuple[str | int, ...]
S = TypeVar("S", bound=msgspec.Struct)


def load_pipeline(path: str | os.PathLike[str], replace: Mapping[str, str] | None = None) -> model.Pipeline:
    """Load a pipeline from a file. Relative paths in it are relative to the file's directory.

    Args:
        path: The file.
        replace: Values of "spark.master" and "broker.url" that override the file's.

    Raises:
        PipelineError: The file is unreadable or invalid.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        raw = tomllib.loads(text)
    except OSError as error:
        raise PipelineError(f"{file}: the pipeline file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PipelineError(f"{file}: not UTF-8 (byte {error.start}); expected TOML in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{file}: not valid TOML: {error}") from None
    for key, value in (replace or {}).items():
        section, _, name = key.partition(".")
        if isinstance(raw.setdefault(section, {}), dict):
            raw[section][name] = value
    return _Parser(str(file), text, file.parent.absolute()).pipeline(raw)


def pipeline_of(table: Mapping[str, Document], base: str | os.PathLike[str] = ".") -> model.Pipeline:
    """Like `load_pipeline`, from a table with the file's structure; relative paths are relative to `base`."""
    return _Parser("pipeline", "", Path(base).absolute()).pipeline(dict(table))


class _Parser:
    def __init__(self, name: str, text: str, base: Path) -> None:
        self._name = name
        self._lines = text.splitlines()
        self._base = base

    def pipeline(self, raw: dict[str, Document]) -> model.Pipeline:
        outline = self._convert(raw, model._Outline, ())
        if not re.fullmatch(r"[\w.-]{1,100}", outline.name):
            raise self._error(("name",), f"is {outline.name!r}; expected letters, digits, '.', '-' and '_'")
        if not outline.flows:
            raise self._error(("flows",), "is empty; expected at least one table [flows.NAME]")
        flows = {name: self._flow(name, table) for name, table in outline.flows.items()}
        return model.Pipeline(
            name=outline.name,
            directory=model.absolute_path(outline.directory, self._base),
            broker=outline.broker.with_absolute_paths(self._base),
            spark=outline.spark,
            supervision=outline.supervision,
            flows=flows,
        )

    def _flow(self, name: str, table: dict[str, Document]) -> model.FlowSection:
        at = ("flows", name)
        if not re.fullmatch(r"[\w-]{1,100}", name):
            raise self._error(at, "has an invalid name; expected letters, digits, '-' and '_'")
        kind = table.get("kind", DEFAULT_KIND)
        if kind not in KINDS:
            raise self._error((*at, "kind"), f"is {kind!r}; expected one of {', '.join(KINDS)}")
        flow: model.FlowSection = self._convert(table, KINDS[kind], at)
        for path, problem in check_flow(flow):
            raise self._error((*at, *path), problem)
        return flow.with_absolute_paths(self._base)

    def _convert(self, value: Document, type: type[S], at: _Path) -> S:
        try:
            return msgspec.convert(value, type)
        except msgspec.ValidationError as error:
            raise self._conversion_error(field_error(error), type, at, value) from None

    def _conversion_error(self, message: str, type: type[msgspec.Struct], at: _Path, value: Document) -> PipelineError:
        place = _AT_PATH.search(message)
        path = list(at)
        if place is not None:
            message = message[: place.start()]
            for key, index, _ in _PART.findall(place.group(1)):
                path.append(key if key else int(index) if index else "...")
        unknown = _UNKNOWN.match(message)
        if unknown is None:
            allowed = _allowed(type, path[len(at) :])
            if allowed and message.startswith("Invalid enum value"):
                return self._error(tuple(path), f"is {message.split()[-1]}; expected one of {', '.join(allowed)}")
            return self._error(tuple(path), f"is invalid: {message[:1].lower()}{message[1:]}")
        known = _fields(type, path[len(at) :])
        near = difflib.get_close_matches(unknown.group(1), known, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}"
        return self._error((*path, unknown.group(1)), f"is unknown; {hint}")

    def _error(self, path: _Path, problem: str) -> PipelineError:
        line = self._line(path)
        where = f"{self._name}:{line}" if line else self._name
        return PipelineError(f"{where}: {dotted(path)} {problem}")

    def _line(self, path: _Path) -> int:
        """Return the line of a key, or of the table that it belongs to; 0 if neither is found."""
        found, best = 0, 0
        section: list[str] = []
        counts: dict[tuple[str, ...], int] = {}
        wanted = [part for part in path if isinstance(part, str)]
        wanted_index = next((part for part in path if isinstance(part, int)), None)
        for number, line in enumerate(self._lines, 1):
            header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line)
            key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
            if header is not None:
                section = [part.strip("\"' ") for part in header.group(2).split(".")]
                if header.group(1) == "[[":
                    counts[tuple(section)] = counts.get(tuple(section), -1) + 1
                here = section
            elif key is not None:
                here = [*section, *(part.strip("\"' ") for part in key.group(1).split("."))]
            else:
                continue
            index = next(
                (counts[tuple(section[:end])] for end in range(len(section), 0, -1) if tuple(section[:end]) in counts), None
            )
            if wanted_index is not None and index is not None and index != wanted_index:
                continue
            if here == wanted[: len(here)] and len(here) > best:
                found, best = number, len(here)
        return found


def dotted(path: _Path) -> str:
    """Return a path in TOML notation, with 1-based indices of array elements in brackets."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part + 1}]"
        else:
            text += ("." if text else "") + part
    return text or "the pipeline"


def _fields(type: type[msgspec.Struct], path: list[str | int]) -> list[str]:
    """Return the field names of the struct at a path."""
    info = _inner(type, path)
    if isinstance(info, msgspec.inspect.UnionType):
        info = next((one for one in info.types if isinstance(one, msgspec.inspect.StructType)), info)
    return [one.encode_name for one in info.fields] if isinstance(info, msgspec.inspect.StructType) else []


def _allowed(type: type[msgspec.Struct], path: list[str | int]) -> list[str]:
    info = _inner(type, path)
    return [str(value) for value in info.values] if isinstance(info, msgspec.inspect.LiteralType) else []


def _inner(type: type[msgspec.Struct], path: list[str | int]) -> msgspec.inspect.Type:
    info = msgspec.inspect.type_info(type)
    for part in path:
        if isinstance(info, msgspec.inspect.UnionType):
            info = next((one for one in info.types if not isinstance(one, msgspec.inspect.NoneType)), info)
        if isinstance(info, msgspec.inspect.StructType):
            info = next((one.type for one in info.fields if one.encode_name == part), info)
        elif isinstance(info, msgspec.inspect.ListType):
            info = info.item_type
        elif isinstance(info, msgspec.inspect.DictType):
            info = info.value_type
    return info
