"""Text files: their encoding, and JSON errors with the line and the column."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

_MISSING: Final = re.compile(r"Object missing required field `([^`]*)`")
_OFFSET: Final = re.compile(r"(.*?)(?: \(byte (\d+)\))?")
_EXPECTING: Final = re.compile(r"^Expecting\b")
_AT: Final = re.compile(r"(?: starting)? at$")


def decode_text(content: bytes) -> str:
    """Decode text in UTF-8, UTF-16 or UTF-32, with or without a byte order mark, whose first two characters are ASCII.

    Raises:
        ValueError: The text is not in its encoding.
    """
    encoding = json.detect_encoding(content)
    try:
        return content.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode(encoding, "replace").removeprefix("\ufeff")
        name = encoding.removesuffix("-sig").upper()
        raise ValueError(f"{_position(before, len(before))}: not {name}") from None


def read_json(content: bytes | str) -> Any:
    """Return the value of a JSON file in UTF-8, UTF-16 or UTF-32, with or without a byte order mark.

    Raises:
        ValueError: The file is not JSON. The message begins with the line and the column.
    """
    text = decode_text(content) if isinstance(content, bytes) else content
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("objects and lists are nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(_explained(text, str(error))) from None


def field_error(error: msgspec.ValidationError | str) -> str:
    """Return why an object is not of a type, from the message of msgspec, in the words of the other messages."""
    return _MISSING.sub(r"the field '\1' is missing", str(error))


def _explained(text: str, problem: str) -> str:
    """Return where and why a text is not JSON. `problem` is the message of msgspec, which names a byte."""
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        reason = _AT.sub("", _EXPECTING.sub("expected", error.msg))
        return f"{_position(text, error.pos)}: {reason[0].lower()}{reason[1:]}"
    except (ValueError, RecursionError):
        pass
    match = _OFFSET.fullmatch(problem)
    assert match is not None
    if match[2] is None:
        return f"{problem[0].lower()}{problem[1:]}"
    at = len(text.encode("utf-8", "replace")[: int(match[2])].decode("utf-8", "ignore"))
    return f"{_position(text, at)}: {match[1].removeprefix('JSON is malformed: ')}"


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _position(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - text.rfind(chr(10), 0, at)}"
