"""The ends of a shovel over AMQP 1.0."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leveret.client._async.base_channel import BaseChannel
from leveret.client._async.connection import Amqp10Connection
from leveret.client._async.consumer import Consumer
from leveret.client._async.receiver import Receiver
from leveret.client._async.sender import Sender
from leveret.client._async.session import Session
from leveret.client.delivery import Delivery
from leveret.client.engine.amqp10.link import links
from leveret.client.engine.amqp10.link.outgoing import Transfer
from leveret.client.engine.amqp10.properties import NO_ADDITIONS, encode_sections
from leveret.client.message import Message
from leveret.shovel.additions import Amend
from leveret.shovel.definition import ON_CONFIRM, Definition
from leveret.shovel.ends import AnyMessage, Destination, Source
from leveret.shovel.fitting import encode_fitting
from leveret.shovel.uris import AMQP10
from leveret.wire.amqp10.message import encode_data_head, encode_header


class Amqp10Source(Source):
    """A receiver."""

    connection: Amqp10Connection

    async def _attach(self) -> Consumer:
        session = await self.connection.session()
        core = links.new_receiver(
            session.core,
            self.definition.source.address,
            name="",
            prefetch=self.definition.prefetch,
            filters=None,
            browse=False,
            durable=False,
            settled=self.is_settled,
            settle_second=False,
            dynamic=False,
            properties=None,
            capabilities=(),
        )
        return Receiver(session, core)


class Amqp10Destination(Destination):
    """A sender."""

    connection: Amqp10Connection

    def __init__(self, definition: Definition, amend: Amend | None) -> None:
        super().__init__(definition)
        self._amend = amend
        encode: Callable[[AnyMessage], Transfer] = (
            self._received
            if amend is None and definition.additions == NO_ADDITIONS and definition.source.protocol == AMQP10
            else self._converted
        )
        self._encode = encode

    async def _attach(self) -> None:
        definition = self.definition
        self._session: Session = await self.connection.session()
        self._sender: Sender = await self._session.sender(
            definition.destination.address, settled=definition.ack_mode != ON_CONFIRM
        )

    @property
    def channel(self) -> BaseChannel:
        """The session of the sender."""
        return self._session

    def encode(self, message: AnyMessage) -> Transfer:
        """Return a publish of a message. Raises `InvalidMessage`."""
        transfer = self._encode(message)
        transfer.send_by(self._sender.core)
        return transfer

    def publish(self, outgoing: Transfer) -> None:
        """Publish an encoded message; the channel must be flowing. Raises `Error`."""
        self._session.core.publish(outgoing)

    def _received(self, message: Delivery) -> Transfer:
        """Return the bare message and its annotations unchanged, with a header of its own."""
        sections, payload = message.sections, message.payload
        header = encode_header(sections.durable, sections.priority, sections.ttl, False, 0)
        rest = payload[sections.rest :]
        return Transfer("", "", "", 0, [header, rest], len(header) + len(rest), b"")

    def _converted(self, message: Message) -> Transfer:
        properties = message.properties if self._amend is None else self._amend(message)
        body = message.body
        encode = partial(encode_sections, addresses=self.connection.core.addresses, additions=self.definition.additions)
        sections = encode_fitting(properties, encode)
        head = sections + encode_data_head(len(body))
        return Transfer("", "", "", 0, [head, body], len(head) + len(body), body)
