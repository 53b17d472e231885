"""Bodies of HTML forms with files (`multipart/form-data`, RFC 7578)."""

from __future__ import annotations

from email.message import Message
from typing import Final

from leveret.management.http.errors import bad_request

FORM: Final = "multipart/form-data"
_MAX_FIELDS: Final = 16
_MAX_HEAD: Final = 8192


def is_form(content_type: str) -> bool:
    """Return whether a content type is that of a form with files."""
    return content_type.partition(";")[0].strip().lower() == FORM


def read_form(content: bytes, content_type: str) -> dict[str, bytes]:
    """Return the fields of a form by name; the first one of each name. Raises `HttpError` (400)."""
    boundary = _parameter("content-type", content_type, "boundary")
    if not boundary:
        raise bad_request("multipart/form-data without a boundary")
    parts = (b"\r\n" + content).split(b"\r\n--" + boundary.encode("latin-1", "replace"))
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise bad_request("incomplete multipart/form-data: the last boundary is missing")
    if len(parts) - 2 > _MAX_FIELDS:
        raise bad_request(f"multipart/form-data with {len(parts) - 2} fields; expected at most {_MAX_FIELDS}")
    fields: dict[str, bytes] = {}
    for part in parts[1:-1]:
        head, separator, value = part.partition(b"\r\n\r\n")
        name = _name(head)
        if not separator or len(head) > _MAX_HEAD or name is None:
            raise bad_request("invalid multipart/form-data: a field has no name")
        fields.setdefault(name, value)
    return fields


def _name(head: bytes) -> str | None:
    """Return the name of a field, or None if its head has none."""
    for line in head.split(b"\r\n"):
        header, _, value = line.partition(b":")
        if header.strip().lower() == b"content-disposition":
            return _parameter("content-disposition", value.strip().decode("latin-1"), "name")
    return None


def _parameter(header: str, value: str, name: str) -> str | None:
    message = Message()
    message[header] = value.replace("\r", " ").replace("\n", " ")
    found = message.get_param(name, header=header)
    return found if isinstance(found, str) else None
