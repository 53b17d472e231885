"""Reading a pipeline.toml. Every refusal names the file, the line, the key, what was wrong and what was expected."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from leveret.spark.pipeline import model
from leveret.spark.pipeline.checks import check_flow
from leveret.spark.pipeline.errors import PipelineError

_PLACE = re.compile(r" - at `([^`]*)`\Z")
_PART = re.compile(r"\.([\w-]+)|\[(\d+)\]|\[(\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")

_Path = tuple[str | int, ...]


def load_pipeline(path: str | os.PathLike[str], replace: Mapping[str, str] | None = None) -> model.Pipeline:
    """The pipeline of a file. Relative paths in it start at the file's directory.

    replace  values of spark.master and broker.url that count instead of the file's
    Raises `PipelineError`.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        raw = tomllib.loads(text)
    except OSError as error:
        raise PipelineError(f"{file}: the pipeline's file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PipelineError(f"{file}: not UTF-8 (octet {error.start}); expected TOML in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{file}: not valid TOML: {error}") from None
    for key, value in (replace or {}).items():
        section, _, name = key.partition(".")
        if isinstance(raw.setdefault(section, {}), dict):
            raw[section][name] = value
    return _Reading(str(file), text, file.parent.absolute()).pipeline(raw)


def pipeline_of(table: Mapping[str, Any], base: str | os.PathLike[str] = ".") -> model.Pipeline:
    """The same from a table of the file's structure; relative paths start at `base`. Raises `PipelineError`."""
    return _Reading("pipeline", "", Path(base).absolute()).pipeline(dict(table))


class _Reading:
    def __init__(self, name: str, text: str, base: Path) -> None:
        self._name = name
        self._lines = text.splitlines()
        self._base = base

    def pipeline(self, raw: dict[str, Any]) -> model.Pipeline:
        outline = self._convert(raw, model._Outline, ())
        if not re.fullmatch(r"[\w.-]{1,100}", outline.name):
            raise self._refusal(("name",), f"is {outline.name!r}; expected letters, digits, '.', '-' and '_'")
        if not outline.flows:
            raise self._refusal(("flows",), "are none; expected at least one table [flows.NAME]")
        flows = {name: self._flow(name, table) for name, table in outline.flows.items()}
        broker = msgspec.structs.replace(outline.broker, password_file=self._located(outline.broker.password_file))
        return model.Pipeline(name=outline.name, directory=self._located(outline.directory), broker=broker,
                              spark=outline.spark, supervision=outline.supervision, flows=flows)

    def _flow(self, name: str, table: dict[str, Any]) -> model.AnyFlow:
        at = ("flows", name)
        if not re.fullmatch(r"[\w-]{1,100}", name):
            raise self._refusal(at, "has a name with other characters than letters, digits, '-' and '_'")
        kind = table.get("kind", "flow")
        if kind not in model.KINDS:
            raise self._refusal((*at, "kind"), f"is {kind!r}; expected one of {', '.join(model.KINDS)}")
        flow: model.AnyFlow = self._convert(table, model.KINDS[kind], at)
        for path, problem in check_flow(flow):
            raise self._refusal((*at, *path), problem)
        return self._with_paths(flow)

    def _with_paths(self, flow: model.AnyFlow) -> model.AnyFlow:
        """Relative paths of files and tables become absolute ones."""
        changed: dict[str, Any] = {}
        for name in flow.__struct_fields__:
            value = getattr(flow, name)
            if isinstance(value, model.Decode):
                changed[name] = msgspec.structs.replace(value, schema_file=self._located(value.schema_file),
                                                        quarantine=self._located(value.quarantine))
            elif isinstance(value, (model.TableOutput, model.StaticTable)):
                changed[name] = self._table(value)
            elif name == "tables":
                changed[name] = [self._table(table) for table in value]
            elif isinstance(value, model.Transform):
                tables = {key: self._table(table) for key, table in value.tables.items()}
                where = [str(self._base), *(self._located(one) for one in value.path)]
                changed[name] = msgspec.structs.replace(value, tables=tables, path=where)
            elif name in ("quarantine", "key_file", "report"):
                changed[name] = self._located(value)
        return msgspec.structs.replace(flow, **changed)

    def _table(self, table: Any) -> Any:
        return msgspec.structs.replace(table, path=self._located(table.path))

    def _located(self, path: Any) -> Any:
        """A URL stays as it is; so does None."""
        if path is None or "://" in path:
            return path
        return str(self._base / Path(path).expanduser())

    def _convert(self, value: Any, type: Any, at: _Path) -> Any:
        try:
            return msgspec.convert(value, type)
        except msgspec.ValidationError as error:
            raise self._misfit(str(error), type, at, value) from None

    def _misfit(self, message: str, type: Any, at: _Path, value: Any) -> PipelineError:
        place = _PLACE.search(message)
        path = list(at)
        if place is not None:
            message = message[: place.start()]
            for key, index, _ in _PART.findall(place.group(1)):
                path.append(key if key else int(index) if index else "...")
        unknown = _UNKNOWN.match(message)
        if unknown is None:
            allowed = _allowed(type, path[len(at):])
            if allowed and message.startswith("Invalid enum value"):
                return self._refusal(tuple(path), f"is {message.split()[-1]}; expected one of {', '.join(allowed)}")
            return self._refusal(tuple(path), f"does not fit: {message[:1].lower()}{message[1:]}")
        known = _fields(type, path[len(at):])
        near = difflib.get_close_matches(unknown.group(1), known, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
        return self._refusal((*path, unknown.group(1)), f"is not known; {hint}")

    def _refusal(self, path: _Path, problem: str) -> PipelineError:
        line = self._line(path)
        where = f"{self._name}:{line}" if line else self._name
        return PipelineError(f"{where}: {dotted(path)} {problem}")

    def _line(self, path: _Path) -> int:
        """The line of a key, or of the table that it belongs in; 0 where neither is found."""
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
            index = next((counts[tuple(section[:end])] for end in range(len(section), 0, -1)
                          if tuple(section[:end]) in counts), None)
            if wanted_index is not None and index is not None and index != wanted_index:
                continue
            if here == wanted[: len(here)] and len(here) > best:
                found, best = number, len(here)
        return found


def dotted(path: _Path) -> str:
    """A path in TOML's notation, with numbers of arrays' elements, from 1 on, in brackets."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part + 1}]"
        else:
            text += ("." if text else "") + part
    return text or "the pipeline"


def _fields(type: Any, path: list[str | int]) -> list[str]:
    """The names that the struct at a path within another one has."""
    info = _inner(type, path)
    if isinstance(info, msgspec.inspect.UnionType):
        info = next((one for one in info.types if isinstance(one, msgspec.inspect.StructType)), info)
    return [one.encode_name for one in info.fields] if isinstance(info, msgspec.inspect.StructType) else []


def _allowed(type: Any, path: list[str | int]) -> list[str]:
    info = _inner(type, path)
    return [str(value) for value in info.values] if isinstance(info, msgspec.inspect.LiteralType) else []


def _inner(type: Any, path: list[str | int]) -> Any:
    info: Any = msgspec.inspect.type_info(type)
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
