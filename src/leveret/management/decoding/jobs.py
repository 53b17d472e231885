"""Requests to the decoding process, and its answers."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

Format: TypeAlias = Literal["protobuf", "avro"]

# Seconds of processor time and bytes of memory that one job may use.
TIME_LIMIT: Final = 4
MEMORY_LIMIT: Final = 512 << 20
# Maximum number of message types that one schema may have.
MAX_TYPES: Final = 2000


class Row(msgspec.Struct, kw_only=True):
    """A value of a payload. `end` is the index behind the last row inside the value."""

    index: int
    depth: int
    name: str
    type: str
    value: str
    end: int


class Job(msgspec.Struct, kw_only=True):
    """A schema to check, or a payload to decode by it.

    Attributes:
        format: The format of the schema.
        schema: A FileDescriptorSet in base64, or an Avro schema in JSON.
        type: The message type of the payload (Protobuf).
        payload: The payload; None to check the schema only.
    """

    format: Format
    schema: str
    type: str = ""
    payload: bytes | None = None


class Framing(msgspec.Struct, kw_only=True):
    """A header before the encoded value.

    Attributes:
        name: `confluent`, `single-object`, or "" for none.
        schema_id: The id of the schema in a registry (`confluent`).
        detail: The message indexes (`confluent` with Protobuf), or the fingerprint of the schema (`single-object`).
    """

    name: str = ""
    schema_id: int | None = None
    detail: str = ""


class Decoded(msgspec.Struct, kw_only=True):
    """The result of a job.

    Attributes:
        error: Why the schema or the payload is not valid; None if it is.
        types: The names of the message types of the schema.
        rows: The values of the payload in their order.
    """

    error: str | None = None
    types: list[str] = msgspec.field(default_factory=list)
    rows: list[Row] = msgspec.field(default_factory=list)
    framing: Framing = msgspec.field(default_factory=Framing)
