"""Control requests and their replies as messages: properties, correlation and bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import whole
from leveret.broker.message import FORMAT_AMQP1, Message, make_address
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.terminus import addresses
from leveret.protocols.convert import to_amqp0
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.values import ContentProperties
from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.composites import decode_composite, encode_composite
from leveret.wire.amqp10.encode import encode_binary
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.sections import split

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost

BASIC: Final = 60
JSON: Final = "application/json"
_DATA: Final = bytes((codes.DESCRIBED, codes.SMALL_ULONG, 0x75))


class Envelopes:
    """Envelopes of requests. A 1.0 request gets a 1.0 reply, which keeps the type of its id; others get a 0-9-1 reply."""

    def reply_to(self, vhost: Vhost, message: Message) -> str:
        """Return the queue for the reply; "" if the request names none."""
        if message.format != FORMAT_AMQP1:
            return vhost.broker.property_of(message, "reply-to")
        address = _properties1(message).reply_to
        if not isinstance(address, str) or not address:
            return ""
        try:
            return addresses.parse(address, vhost).queue or ""
        except LinkRefused:
            return ""

    def content(self, message: Message) -> bytes:
        """Return the body as the application sent it."""
        return whole(to_amqp0.content_of(message) if message.format == FORMAT_AMQP1 else message.body)

    def reply(self, vhost: Vhost, message: Message, queue: str, body: bytes) -> Message:
        """Return the JSON reply to a request.

        It has the request's correlation id. A 1.0 request without one gets its message id back instead.
        """
        address = make_address("", queue)
        if message.format == FORMAT_AMQP1:
            request = _properties1(message)
            id = request.message_id if request.correlation_id is None else request.correlation_id
            properties = encode_composite(Properties(content_type=JSON, correlation_id=id))
            data = _DATA + encode_binary(body)
            return Message(address, properties, data, len(data), False, format=FORMAT_AMQP1)
        fields: ContentProperties = {"content_type": JSON}
        correlation = vhost.broker.property_of(message, "correlation-id")
        if correlation:
            fields["correlation_id"] = correlation
        return Message(address, encode_header(BASIC, len(body), fields), body, len(body), False)


def _properties1(message: Message) -> Properties:
    """Return the properties section; an empty one if it is missing or malformed."""
    header = message.header if message.headers_at < 0 else message.header[: message.headers_at]
    try:
        sections = split(header)
        if sections.properties >= 0:
            found = decode_composite(sections.data, sections.properties, sections.properties_end)[0]
            if isinstance(found, Properties):
                return found
    except DecodeError:
        pass
    return Properties()
