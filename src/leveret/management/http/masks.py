"""Fields of messages that are hidden from users: headers, properties, and values in JSON bodies.

A user from whom fields are hidden cannot find them out by a search, and cannot write them back as they are shown.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from leveret.management.descriptions import PROPERTIES
from leveret.management.http.control import Row
from leveret.management.http.errors import not_authorised
from leveret.management.json_values import Json

# The text in place of a hidden value.
MASKED: Final = "***"
# Maximum bytes of a JSON body whose other values are shown.
MAX_JSON: Final = 256 << 10
_HEADERS: Final = "headers."
_BODY: Final = "body"
_IN_BODY: Final = "body."
_DEATHS: Final = "death."
_DEATH_HEADER: Final = "x-death"
# The header of messages of the firehose that has the properties of the traced message.
_TRACED: Final = "properties"
# A path in a body by names and indices alone.
_PATH: Final = re.compile(r"body(\.[^.\[\]*$@?'\"]+)+")


class Masks:
    """The fields that are hidden.

    Args:
        fields: Names as in the conditions of a search: a property, `headers.NAME`, `body` or `body.PATH`.

    Raises:
        ValueError: A name is unknown.
    """

    def __init__(self, fields: Iterable[str]) -> None:
        self._properties: set[str] = set()
        self._headers: set[str] = set()
        self._paths: list[list[str]] = []
        self._hides_body = False
        for field in fields:
            if field in PROPERTIES:
                self._properties.add(field)
            elif field.startswith(_HEADERS) and field != _HEADERS:
                self._headers.add(field.removeprefix(_HEADERS).lower())
            elif field == _BODY:
                self._hides_body = True
            elif _PATH.fullmatch(field):
                self._paths.append(field.removeprefix(_IN_BODY).split("."))
            else:
                raise ValueError(
                    f"unknown field '{field}'; expected one of {', '.join(PROPERTIES)}, headers.NAME, body, body.PATH"
                )

    @property
    def in_body(self) -> bool:
        """Whether parts of bodies are hidden."""
        return self._hides_body or bool(self._paths)

    @property
    def in_properties(self) -> bool:
        """Whether properties or headers are hidden."""
        return bool(self._properties or self._headers)

    def check_field(self, field: str) -> None:
        """Raise `HttpError` (401) if a condition on a field, or its value, discloses one that is hidden."""
        if self._discloses(field):
            raise not_authorised(f"field '{field}' is hidden from the user; the setting is management.mask")

    def _discloses(self, field: str) -> bool:
        if field.startswith(_HEADERS):
            name = field.removeprefix(_HEADERS).lower()
            return name in self._headers or (name == _TRACED and self.in_properties)
        if field.startswith(_DEATHS):
            return _DEATH_HEADER in self._headers
        if not field.startswith(_BODY):
            return field in self._properties
        if not self._paths or self._hides_body or not _PATH.fullmatch(field):
            return self.in_body
        # Without indices, since a path applies to all items of a list.
        wanted = _names(field.removeprefix(_IN_BODY).split("."))
        return any(wanted[: len(path)] == path[: len(wanted)] for path in map(_names, self._paths))

    def check_content(self, body: Row) -> None:
        """Raise `HttpError` (401) if a request replaces parts of a message of which some are hidden."""
        if self.in_body and body.get("payload") is not None:
            raise not_authorised("bodies are hidden in part and stay as they are; the setting is management.mask")
        if self.in_properties and body.get("properties") is not None:
            raise not_authorised("properties are hidden in part and stay as they are; the setting is management.mask")

    def check_selector(self) -> None:
        """Raise `HttpError` (401) if properties or headers are hidden, which a selector discloses."""
        if self.in_properties:
            raise not_authorised("properties are hidden in part: search without selector; the setting is management.mask")

    def check_all(self) -> None:
        """Raise `HttpError` (401) if anything is hidden."""
        if self.in_body or self.in_properties:
            raise not_authorised("fields of messages are hidden from the user; the setting is management.mask")

    def check_body(self) -> None:
        """Raise `HttpError` (401) if parts of bodies are hidden."""
        if self.in_body:
            raise not_authorised("parts of bodies are hidden: browse the message; the setting is management.mask")

    async def apply(self, messages: list[Row]) -> None:
        """Hide the fields in messages of an answer, and serve other requests between two of them."""
        for message in messages if self.in_body or self.in_properties else ():
            if isinstance(message["properties"], dict):
                self._hide_properties(message["properties"])
            if message["payload"] and self.in_body:
                self._hide_body(message)
            if message.get("encoded") is not None:
                message["encoded"] = None
            await asyncio.sleep(0)

    def _hide_properties(self, properties: Row) -> None:
        properties |= dict.fromkeys(self._properties & properties.keys(), MASKED)
        headers = properties.get("headers")
        if not isinstance(headers, dict):
            return
        traced = headers.get(_TRACED)
        if isinstance(traced, dict):
            self._hide_properties(traced)
        headers |= {name: MASKED for name in headers if name.lower() in self._headers}

    def _hide_body(self, message: Row) -> None:
        """Hide the values in a payload, or all of one that is not JSON, too large or cut off."""
        is_text = message["payload_encoding"] == "string"
        content = message["payload"].encode("utf-8", "replace") if is_text else base64.b64decode(message["payload"])
        shown = MASKED.encode()
        if not self._hides_body and len(content) == message["payload_bytes"] <= MAX_JSON:
            try:
                value: Json = msgspec.json.decode(content)
                for path in self._paths:
                    value = _hide(value, path)
                shown = msgspec.json.encode(value)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                pass
        message["payload"] = shown.decode() if is_text else base64.b64encode(shown).decode()
        message["payload_bytes"] = len(shown)


NO_MASKS: Final = Masks(())


def _hide(value: Json, path: list[str]) -> Json:
    """Return a value without those at a path. A name of the path applies to all items of a list."""
    if not path:
        return MASKED
    name, *rest = path
    if isinstance(value, dict):
        if name in value:
            value[name] = _hide(value[name], rest)
    elif isinstance(value, list):
        if not name.isdecimal():
            return [_hide(item, path) for item in value]
        if len(name) < 10 and int(name) < len(value):
            value[int(name)] = _hide(value[int(name)], rest)
    return value


def _names(path: list[str]) -> list[str]:
    return [part for part in path if not part.isdecimal()]
