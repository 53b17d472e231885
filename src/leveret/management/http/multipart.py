"""Bodies of HTML forms with files (`multipart/form-data`, RFC 7578)."""

from __future__ import annotations

import re
from typing import Final

from leveret.management.http.errors import bad_request

FORM: Final = "multipart/form-data"
_MAX_FIELDS: Final = 16
_MAX_HEAD: Final = 8192
_PARAMETER: Final = re.compile(r';\s*([^\s=;"]+)=(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^;"]*))', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def is_form(content_type: str) -> bool:
    """Return whether a content type is that of a form with files."""
    return content_type.partition(";")[0].strip().lower() == FORM


def read_form(content: bytes, content_type: str) -> dict[str, bytes]:
    """Return the fields of a form by name; the first one of each name. Raises `HttpError` (400)."""
    boundary = _parameter(content_type, "boundary")
    if not boundary:
        raise bad_request("multipart/form-data without a boundary")
    parts = (b"\r\n" + content).split(b"\r\n--" + boundary.encode("latin-1", "replace"), _MAX_FIELDS + 2)
    if len(parts) > _MAX_FIELDS + 2:
        raise bad_request(f"multipart/form-data with more than {_MAX_FIELDS} fields, the maximum")
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise bad_request("incomplete multipart/form-data: the last boundary is missing")
    fields: dict[str, bytes] = {}
    for part in parts[1:-1]:
        head, separator, value = part.partition(b"\r\n\r\n")
        name = _name(head) if len(head) <= _MAX_HEAD else None
        if not separator or name is None:
            raise bad_request("invalid multipart/form-data: a field has no name")
        fields.setdefault(name, value)
    return fields


def _name(head: bytes) -> str | None:
    """Return the name of a field, or None if its head has none."""
    for line in head.split(b"\r\n"):
        header, _, value = line.partition(b":")
        if header.strip().lower() == b"content-disposition":
            return _parameter(value.decode("latin-1"), "name")
    return None


def _parameter(header: str, name: str) -> str | None:
    """Return a parameter of a header, or None if there is none."""
    # Not by email.message, whose time is quadratic in many versions of Python.
    for found, quoted, plain in _PARAMETER.findall(header):
        if found.lower() == name:
            return _ESCAPED.sub(r"\1", quoted) or plain.strip()
    return None
