"""A client of 0-9, like the one of 0-9-1."""

from __future__ import annotations

from typing import Any

from leveret.broker.message import make_address
from leveret.broker.timers import Timers
from leveret.protocols.amqp09.connection.connection import Connection
from leveret.wire.amqp0.commands import TICKET_SHIFT
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.protocols.support import BASIC, Site
from tests.protocols.support import Channel as Channel091
from tests.protocols.support import Client as Client091


class Client(Client091):
    version = V0_9
    product = "tests"

    def make_session(self) -> Connection:
        return Connection(self.peer, self.site.protocols.amqp09)

    def open(self) -> None:
        """Perform the handshake, up to connection.open-ok or the refusal."""
        self.run()
        self.start = self.take("connection.start")
        assert self.start is not None
        self.engine.send(
            0,
            "connection.start-ok",
            {
                "client_properties": {"product": self.product},
                "mechanism": "PLAIN",
                "response": f"\0{self.user}\0{self.password}",
                "locale": "en_US",
            },
        )
        self.run()
        if self.take("connection.tune") is None:
            return
        self.engine.send(
            0,
            "connection.tune-ok",
            {"channel_max": self.engine.channel_max, "frame_max": self.frame_max or self.engine.frame_max, "heartbeat": 0},
        )
        self.open_vhost()

    def open_vhost(self, insist: bool = False) -> None:
        self.engine.send(0, "connection.open", {"virtual_host": self.vhost, "insist": insist})
        self.run()
        self.opened = self.take("connection.open-ok")

    def channel(self, number: int = 0) -> Channel:
        number = number or len(self.channels) + 1
        channel = Channel(self, number)
        self.channels[number] = channel
        channel.id = self.call(number, "channel.open", "channel.open-ok")["channel_id"]
        return channel


class Channel(Channel091):
    client: Client
    id = ""

    def __init__(self, client: Client, number: int) -> None:
        super().__init__(client, number)

    def consume(
        self,
        queue: str = "q",
        *,
        tag: str = "",
        no_ack: bool = False,
        no_local: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
        ticket: int = 0,
    ) -> str:
        answer = self.call(
            "basic.consume",
            "basic.consume-ok",
            queue=queue,
            consumer_tag=tag,
            no_ack=no_ack,
            no_local=no_local,
            exclusive=exclusive,
            filter=arguments or {},
            ticket=ticket,
        )
        return str(answer["consumer_tag"])

    def publish(
        self,
        key: str = "q",
        body: bytes = b"m",
        *,
        exchange: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        ticket: int = 0,
        **properties: Any,
    ) -> None:
        header = encode_header(BASIC, len(body), properties)
        flags = mandatory | immediate << 1 | ticket << TICKET_SHIFT
        self.client.engine.send_publish(self.number, make_address(exchange, key), flags, header, body, len(body))

    def refused(self) -> int:
        """Return the reply code of the received close."""
        self.run()
        return self.client.refusal()[0]


def connect(site: Site, **options: Any) -> Client:
    client = Client(site, **options)
    client.open()
    return client


class Clock(Timers):
    """The broker's timers over a clock that moves only on request."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.time = 1_700_000_000_000
        self.site = site
        site.broker.timers = self

    def now(self) -> int:
        return self.time

    def advance(self, milliseconds: int) -> None:
        """Advance the clock from one due timer to the next."""
        end = self.time + milliseconds
        while True:
            due = self.next_due()
            if not due or due > end:
                break
            self.time = max(self.time, due)
            self.run(self.time)
            self.site.run()
        self.time = end
