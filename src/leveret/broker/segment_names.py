"""The names of the fields of a segment in the log, in replies, and in messages to the process that writes files."""

from __future__ import annotations

from typing import Final

# Only those that differ from the names of the attributes.
STORED_NAMES: Final = {"bytes": "octets", "body_bytes": "body_octets", "footer_bytes": "footer_octets"}
