"""What the column `amqp10` holds of a message of AMQP 1.0, for a sink that publishes over 0-9-1 (docs/conversion.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from leveret.segments import typed_json

# Fields of the struct that are texts or numbers of headers of their own.
_FIELDS: Final = {"to": "x-opt-to", "subject": "x-opt-subject", "group_sequence": "x-opt-group-sequence",
                  "reply_to_group_id": "x-opt-reply-to-group-id", "message_id_type": "x-opt-message-id-type",
                  "correlation_id_type": "x-opt-correlation-id-type"}
# What the columns of these types say is all that there is to say.
_USUAL_IDS: Final = (None, "", "string")


# Annotations that are other things in 0-9-1.
_ELSEWHERE: Final = ("x-exchange", "x-routing-key", "x-basic-type", "x-opt-cluster-id", "x-opt-deaths")
_NESTED: Final = "x-opt-header-"


def headers_of_amqp10(value: dict[str, Any]) -> dict[str, Any]:
    """The headers, as JSON data, that stand in 0-9-1 for what only 1.0 has. ValueError for annotations that are no JSON."""
    headers = _annotated(value.get("message_annotations"))
    if value.get("body_type") == "string":
        headers["x-opt-amqp-body"] = "string"
    for field, name in _FIELDS.items():
        found = value.get(field)
        if found is None or (field.endswith("_id_type") and found in _USUAL_IDS):
            continue
        headers[name] = {"$long": found} if isinstance(found, int) else found
    expiry = value.get("absolute_expiry_time")
    if isinstance(expiry, datetime):
        headers["x-opt-absolute-expiry-time"] = {"!timestamp": expiry.astimezone(UTC).isoformat()}
    return headers


def _annotated(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    found = typed_json.parse(text)
    if not isinstance(found, dict):
        raise ValueError(f"amqp10.message_annotations: expected a JSON object, not {text[:40]!r}")
    return {name.removeprefix(_NESTED): item for name, item in found.items()
            if name.startswith("x-") and name not in _ELSEWHERE}
