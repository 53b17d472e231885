"""Headers for the column `amqp10` of a row that a sink publishes over 0-9-1 (docs/conversion.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from leveret.segments import typed_json

# Fields of the struct that become headers.
_FIELD_HEADERS: Final = {"to": "x-opt-to", "subject": "x-opt-subject", "group_sequence": "x-opt-group-sequence",
                  "reply_to_group_id": "x-opt-reply-to-group-id", "message_id_type": "x-opt-message-id-type",
                  "correlation_id_type": "x-opt-correlation-id-type"}
# Types that need no header, because the columns imply them.
_DEFAULT_ID_TYPES: Final = (None, "", "string")


# Annotations that 0-9-1 represents otherwise.
_NOT_HEADERS: Final = ("x-exchange", "x-routing-key", "x-basic-type", "x-opt-cluster-id", "x-opt-deaths")
_NESTED_PREFIX: Final = "x-opt-header-"


def headers_of_amqp10(value: dict[str, Any]) -> dict[str, Any]:
    """Return the headers, as JSON data, for what only 1.0 has. Raises ValueError if the annotations are not JSON."""
    headers = _from_annotations(value.get("message_annotations"))
    if value.get("body_type") == "string":
        headers["x-opt-amqp-body"] = "string"
    for field, name in _FIELD_HEADERS.items():
        found = value.get(field)
        if found is None or (field.endswith("_id_type") and found in _DEFAULT_ID_TYPES):
            continue
        headers[name] = {"$long": found} if isinstance(found, int) else found
    expiry = value.get("absolute_expiry_time")
    if isinstance(expiry, datetime):
        headers["x-opt-absolute-expiry-time"] = {"!timestamp": expiry.astimezone(UTC).isoformat()}
    return headers


def _from_annotations(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    found = typed_json.parse(text)
    if not isinstance(found, dict):
        raise ValueError(f"amqp10.message_annotations: expected a JSON object, not {text[:40]!r}")
    return {name.removeprefix(_NESTED_PREFIX): item for name, item in found.items()
            if name.startswith("x-") and name not in _NOT_HEADERS}
