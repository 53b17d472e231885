"""Schemas of payloads that users share, and payloads decoded by them. A schema is a global parameter of the broker."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from leveret._text import field_error
from leveret.management.decoding import framing
from leveret.management.decoding.jobs import Decoded, Format, Framing, Job, Row
from leveret.management.http import global_parameters
from leveret.management.http.control import Row as Item
from leveret.management.http.errors import bad_request
from leveret.management.http.global_parameters import PAYLOAD_SCHEMA as PREFIX
from leveret.management.http.lists import select
from leveret.management.http.places import Kind
from leveret.management.http.request import Answer, Request
from leveret.security.patterns import Pattern, matches

MAX_SCHEMAS: Final = 32
_SCHEMAS: Final = Kind("schemas of payloads", MAX_SCHEMAS)
# Characters of a schema, and bytes of a payload that is decoded.
MAX_SCHEMA: Final = 256 << 10
MAX_PAYLOAD: Final = 1 << 20
_MAX_NAME: Final = 200
_MAX_CONTENT_TYPE: Final = 2000
# Parameters of content types that name a message type.
_TYPE_PARAMETERS: Final = ("messagetype", "proto", "type")
_PARAMETER: Final = re.compile(r';\s*([\w-]{1,64})\s*=\s*(?:"([^"]{0,500})"|([^\s;"]{1,500}))')


class PayloadSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema, and the messages that it is for: those that meet all conditions it has.

    Attributes:
        format: `protobuf` or `avro`.
        schema: A FileDescriptorSet in base64, or an Avro schema in JSON.
        type: The message type of payloads (Protobuf).
        vhost: The vhost; None for all.
        queue: A regular expression over the names of queues; "" for all.
        exchange: A regular expression over the names of exchanges; "" for all.
        content_type: The content type, without its parameters; "" for all.
        header: The name of a header that messages have; "" for none.
        header_value: The value of that header; "" for any.
        schema_id: The id with which payloads begin (Confluent's framing); None for any payload.
        types: The message types that the schema has; ignored in requests.
    """

    format: Format
    schema: Annotated[str, Meta(min_length=1, max_length=MAX_SCHEMA)]
    type: Annotated[str, Meta(max_length=1000)] = ""
    vhost: Annotated[str, Meta(max_length=255)] | None = None
    queue: Annotated[str, Meta(max_length=1000)] = ""
    exchange: Annotated[str, Meta(max_length=1000)] = ""
    content_type: Annotated[str, Meta(max_length=255)] = ""
    header: Annotated[str, Meta(max_length=255)] = ""
    header_value: Annotated[str, Meta(max_length=1000)] = ""
    schema_id: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    types: list[str] = msgspec.field(default_factory=list)


class Payload(msgspec.Struct, kw_only=True):
    """A payload to decode, and what is known of its message.

    Attributes:
        payload: The payload in base64.
        name: The name of the schema; None for the one that matches the message.
        message_type: The message type; None for the one that the message names, or that of the schema.
        vhost: The vhost of the message.
        queue: The queue in which it is.
        exchange: The exchange that it was published to.
        properties: Its properties, of which `content_type`, `type` and `headers` are used.
    """

    payload: bytes
    name: str | None = None
    message_type: str | None = None
    vhost: str = "/"
    queue: str = ""
    exchange: str = ""
    properties: dict[str, Any] = msgspec.field(default_factory=dict)


class ListedSchema(msgspec.Struct, kw_only=True):
    """A schema without its content. `size` is the number of its characters."""

    name: str
    format: Format
    type: str
    vhost: str | None
    queue: str
    exchange: str
    content_type: str
    header: str
    header_value: str
    schema_id: int | None
    types: list[str]
    size: int


class DecodedPayload(msgspec.Struct, kw_only=True):
    """A decoded payload.

    Attributes:
        name: The name of the schema; None if none matches the message.
        type: The message type.
        types: The message types of the schema.
        error: Why the payload is not valid; None if it is.
        framing: The header with which the payload begins.
        rows: The values of the payload in their order.
    """

    name: str | None
    type: str
    types: list[str]
    error: str | None
    framing: Framing
    rows: list[Row]


class _Message:
    """The attributes of a message that schemas are matched with."""

    def __init__(self, payload: Payload) -> None:
        self.vhost, self.queue, self.exchange = payload.vhost, payload.queue, payload.exchange
        properties = payload.properties
        content_type = str(properties.get("content_type") or "")[:_MAX_CONTENT_TYPE]
        self.content_type = content_type.partition(";")[0].strip().lower()
        headers = properties.get("headers")
        self.headers: Item = headers if isinstance(headers, dict) else {}
        self.schema_id = framing.schema_id(payload.payload)
        parameters = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(content_type)}
        named = [parameters.get(name) for name in _TYPE_PARAMETERS]
        # The names of its type that the message has.
        self.types = [str(name) for name in (*named, properties.get("type")) if name]

    def type_of(self, schema: PayloadSchema) -> str | None:
        """Return the message type of a schema that the message names."""
        return next((name for name in self.types if name in schema.types), None)

    def conditions_met(self, schema: PayloadSchema) -> int | None:
        """Return the number of the conditions of a schema; None if the message does not meet them."""
        value = self.headers.get(schema.header)
        results = [
            matches(schema.queue, self.queue) if schema.queue else None,
            matches(schema.exchange, self.exchange) if schema.exchange else None,
            schema.content_type.lower() == self.content_type if schema.content_type else None,
            schema.header in self.headers and schema.header_value in ("", str(value)) if schema.header else None,
            schema.schema_id == self.schema_id if schema.schema_id is not None else None,
        ]
        return None if False in results else len(results) - results.count(None)


async def list_schemas(request: Request) -> Answer:
    """List the schemas of payloads, without their contents."""
    found = []
    for name, schema in (await _visible(request)).items():
        row = msgspec.structs.asdict(schema)
        content = row.pop("schema")
        found.append({"name": name, **row, "size": len(content)})
    return Answer(body=select(found, request.query))


async def put(request: Request) -> Answer:
    """Add or replace a schema: `format` and `schema` are required, and `type` with Protobuf."""
    name = request.name
    if not name or len(name) > _MAX_NAME:
        raise bad_request(f"the name of a schema has {len(name)} characters; expected 1 to {_MAX_NAME}")
    try:
        schema = msgspec.convert(request.body(), PayloadSchema)
    except msgspec.ValidationError as error:
        raise bad_request(f"invalid schema: {field_error(error)}") from None
    for pattern in (schema.queue, schema.exchange):
        try:
            Pattern(pattern)
        except ValueError as error:
            raise bad_request(f"regular expression '{pattern[:80]}' {error}") from None
    checked = await request.decoder.execute(Job(format=schema.format, schema=schema.schema, type=schema.type))
    if checked.error is not None:
        raise bad_request(checked.error)
    value = msgspec.structs.asdict(msgspec.structs.replace(schema, types=checked.types))
    return await global_parameters.store(request, PREFIX, schema.vhost, value, _SCHEMAS)


async def delete(request: Request) -> Answer:
    """Delete a schema."""
    return await global_parameters.delete(request, PREFIX)


async def decode(request: Request) -> Answer:
    """Decode a payload by the schema with a name, or by the one that matches its message."""
    try:
        payload = msgspec.convert(request.body(), Payload)
    except msgspec.ValidationError as error:
        raise bad_request(f"invalid payload: {field_error(error)}") from None
    if len(payload.payload) > MAX_PAYLOAD:
        raise bad_request(f"the payload has {len(payload.payload)} bytes; expected at most {MAX_PAYLOAD}")
    schemas = {name: schema for name, schema in (await _visible(request)).items() if schema.vhost in (None, payload.vhost)}
    message = _Message(payload)
    name = _best(schemas.items(), message) if payload.name is None else payload.name
    if name is None:
        header, _ = framing.split(payload.payload)
        return Answer(body=_describe(None, "", Decoded(framing=header)))
    schema = schemas.get(name)
    if schema is None:
        raise bad_request(f"schema '{name[:_MAX_NAME]}' does not exist in vhost '{payload.vhost}'")
    type = payload.message_type or message.type_of(schema) or schema.type
    job = Job(format=schema.format, schema=schema.schema, type=type, payload=payload.payload)
    return Answer(body=_describe(name, type, await request.decoder.execute(job)))


def _describe(name: str | None, type: str, decoded: Decoded) -> Item:
    found: Item = msgspec.to_builtins(
        DecodedPayload(
            name=name,
            type=type,
            types=decoded.types,
            error=decoded.error,
            framing=decoded.framing,
            rows=decoded.rows,
        )
    )
    return found


def _best(schemas: Iterable[tuple[str, PayloadSchema]], message: _Message) -> str | None:
    """Return the name of the schema for a message.

    A schema with the type that the message names is preferred, then the one with the most conditions.
    """
    found = []
    for name, schema in schemas:
        met = message.conditions_met(schema)
        is_named = message.type_of(schema) is not None
        if met is not None and (met or is_named):
            found.append((not is_named, -met, name))
    return min(found)[2] if found else None


async def _visible(request: Request) -> dict[str, PayloadSchema]:
    """Return the schemas of vhosts that the user sees."""
    schemas = await _schemas(request)
    return {name: found for name, found in schemas.items() if global_parameters.sees(request.identity, found.vhost)}


async def _schemas(request: Request) -> dict[str, PayloadSchema]:
    """Return all schemas by their names. Other global parameters, which clients may have set, are ignored."""
    found = {}
    for item in await request.control.call("global_parameters.list", {"prefix": PREFIX}):
        try:
            found[item["name"].removeprefix(PREFIX)] = msgspec.convert(item["value"], PayloadSchema)
        except msgspec.ValidationError:
            continue
    return found
