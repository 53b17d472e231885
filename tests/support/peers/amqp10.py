"""A raw, blocking AMQP 1.0 peer: the codec, a socket, and a deadline on every read.

It sends any frame, valid or not: performatives through the codec, which checks the types of their fields, and anything else
as bytes from `frame` and `composite`. The codec is the broker's own; `tests/wire/amqp10` compares it with the
specification's tables, with known bytes and with Qpid Proton's codec.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from leveret.wire.amqp10.composite import Composite, Performative
from leveret.wire.amqp10.composites import encode_any, encode_composite, read_composite
from leveret.wire.amqp10.decode import Decoder
from leveret.wire.amqp10.encode import encode_list, encode_value
from leveret.wire.amqp10.message import body as body_values
from leveret.wire.amqp10.messaging import Header, Properties, Source, Target
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from leveret.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from tests.support.peers import connection
from tests.support.peers.connection import TIMEOUT

AMQP = b"AMQP\x00\x01\x00\x00"
TLS = b"AMQP\x02\x01\x00\x00"
SASL = b"AMQP\x03\x01\x00\x00"
LARGE = 1 << 20

P = TypeVar("P", bound=Performative)


def frame(
    body: bytes = b"", channel: int = 0, *, type: int = 0, doff: int = 2, extended: bytes = b"", size: int | None = None
) -> bytes:
    """Return a frame, valid or not."""
    whole = 8 + len(extended) + len(body)
    return struct.pack(">IBBH", whole if size is None else size, doff, type, channel) + extended + body


def composite(descriptor: int, *fields: Any) -> bytes:
    """Return a composite value with any fields; bytes are fields that are already encoded."""
    encoded = [field if isinstance(field, bytes) else encode_any(field) for field in fields]
    content = b"".join(encoded)
    return b"\x00\x53" + bytes((descriptor,)) + b"\xd0" + struct.pack(">II", len(content) + 4, len(encoded)) + content


class Frame(NamedTuple):
    """A received frame; `body` is None for an empty one."""

    type: int
    doff: int
    channel: int
    size: int
    body: Any


class Delivery(NamedTuple):
    """A complete delivery, from its transfers."""

    id: int
    tag: bytes
    settled: bool
    transfers: list[Transfer]
    payload: bytes

    @property
    def body(self) -> bytes:
        """Return the content of its only data section."""
        return body_of(self.payload)


class Peer(connection.Connection):
    """One connection.

    Frames that arrive while the peer waits for others are kept, except the end of a link, a session or the connection with
    an error, which fails the test.
    """

    def adopt(self, opened: socket.socket, timeout: float = TIMEOUT) -> None:
        super().adopt(opened, timeout)
        self.frames: list[Frame] = []
        self.inbox: list[Performative] = []
        self.output = Output(LARGE)
        self.next_channel = 0
        self.opened: Open | None = None

    def _unread(self) -> str:
        return f"{super()._unread()}, kept {[name(item) for item in self.inbox]}"

    def expect_eof(self, reset: bool = False) -> None:
        super().expect_eof(reset)

    # Frames

    def send(self, *performatives: Performative) -> None:
        """Send frames in one write."""
        for performative in performatives:
            self.output.send(performative)
        self.send_bytes(self.output.to_send())

    def read(self, deadline: float | None = None) -> Performative | None:
        """Return the next frame; None for an empty one."""
        start = self.read_bytes(8, deadline)
        size, doff, kind, channel = struct.unpack(">IBBH", start)
        assert start[:4] != b"AMQP", f"a protocol header: {start!r}"
        assert size >= 8 and doff >= 2, f"a frame of {size} bytes with offset {doff}"
        data = self.read_bytes(size - 8, deadline)[doff * 4 - 8 :]
        body: Performative | None = None
        if data:
            decoder = Decoder(data, 0, len(data))
            composite = read_composite(decoder)
            assert isinstance(composite, Performative), f"no performative: {data[:100]!r}"
            body = composite
            body.channel = channel
            if isinstance(body, Transfer):
                body.payload = data[decoder.pos :]
            else:
                assert decoder.pos == len(data), f"bytes behind a performative: {data[decoder.pos :][:100]!r}"
        self.frames.append(Frame(kind, doff, channel, size, body))
        return body

    def take(self, kind: type[P], where: Callable[[P], bool] | None = None) -> P:
        """Remove and return the first frame of a kind, waiting for it if necessary."""
        deadline = time.monotonic() + self.timeout
        for index, item in enumerate(self.inbox):
            if isinstance(item, kind) and (where is None or where(item)):
                del self.inbox[index]
                return item
        while True:
            body = self.read(deadline)
            if isinstance(body, kind) and (where is None or where(body)):
                return body
            if body is not None:
                error = getattr(body, "error", None) if isinstance(body, (Close, End, Detach)) else None
                assert error is None, (
                    f"waiting for {kind.__name__}, got {name(body)}: {error.condition}: {error.description}"
                )
                self.inbox.append(body)

    def kept(self, kind: type[P]) -> list[P]:
        """Remove and return the received frames of a kind."""
        found = [item for item in self.inbox if isinstance(item, kind)]
        self.inbox = [item for item in self.inbox if not isinstance(item, kind)]
        return found

    # Connection

    def header(self, header: bytes = AMQP) -> Peer:
        """Exchange protocol headers."""
        self.send_bytes(header)
        assert self.read_bytes(8) == header
        return self

    def login(self, mechanism: str = "PLAIN", response: bytes = b"\0guest\0guest", hostname: str | None = None) -> int:
        """Do SASL, up to the code of its outcome; the protocol header of AMQP follows if it is 0."""
        self.header(SASL)
        self.take(SaslMechanisms)
        self.send(SaslInit(mechanism, response, hostname))
        code = self.take(SaslOutcome).code
        if code == 0:
            self.header()
        return code

    def open(self, container_id: str = "conformance", **options: Any) -> Open:
        self.send(Open(container_id, **options))
        self.opened = self.take(Open)
        return self.opened

    def begin(self, channel: int | None = None, **options: Any) -> Session:
        session = Session(self, self.next_channel if channel is None else channel)
        self.next_channel = session.channel + 1
        self.send(
            Begin(
                options.pop("next_outgoing_id", 0),
                options.pop("incoming_window", 1000),
                options.pop("outgoing_window", 1000),
                channel=session.channel,
                **options,
            )
        )
        session.begun = self.take(Begin)
        assert session.begun.remote_channel == session.channel
        session.remote = session.begun.channel
        session.next_incoming = session.begun.next_outgoing_id
        return session

    def closed_with(self) -> str:
        """Return the condition of the broker's close and answer it; "" without an error. Then the socket ends."""
        close = self.take(Close)
        self.send(Close())
        self.expect_eof(reset=True)
        return "" if close.error is None else str(close.error.condition)

    def close(self) -> None:
        """Close with a close performative."""
        self.send(Close())
        assert self.take(Close).error is None
        self.expect_eof()


class Session:
    """A session, which uses the next free handle and delivery-id."""

    begun: Begin

    def __init__(self, peer: Peer, channel: int) -> None:
        self.peer = peer
        self.channel = channel
        self.remote = 0
        self.next_handle = 0
        self.next_id = 0
        self.next_incoming = 0
        self.dispositions: list[Disposition] = []

    def send(self, *performatives: Performative) -> None:
        for performative in performatives:
            performative.channel = self.channel
        self.peer.send(*performatives)

    def take(self, kind: type[P], where: Callable[[P], bool] | None = None) -> P:
        return self.peer.take(kind, lambda item: item.channel == self.remote and (where is None or where(item)))

    def flow(self, **fields: Any) -> None:
        """Send the state of the session, and of a link if the fields say so."""
        self.send(
            Flow(
                fields.pop("incoming_window", 1000),
                fields.pop("next_outgoing_id", self.next_id),
                fields.pop("outgoing_window", 1000),
                fields.pop("next_incoming_id", self.next_incoming),
                **fields,
            )
        )

    def sync(self) -> None:
        """Wait for the effects of everything that was sent, except those that wait for the disk."""
        for _ in range(2):  # deliveries leave at the end of the turn in which an echo is sent
            self.flow(echo=True)
            self.take(Flow, lambda item: item.handle is None)

    def attach(self, name: str, role: bool, **options: Any) -> Link:
        """Attach without waiting for the reply."""
        handle = options.pop("handle", None)
        link = Link(self, name, self.next_handle if handle is None else handle, role)
        self.next_handle = max(self.next_handle, link.handle + 1)
        self.send(Attach(name, link.handle, role, **options))
        return link

    def sender(self, address: str | None = None, name: str = "", **options: Any) -> Sender:
        """Attach a link on which the peer sends. It has credit."""
        target = options.pop("target", None) or Target(address)
        link = self.attach(
            name or f"sender-{self.next_handle}",
            False,
            target=target,
            source=options.pop("source", None) or Source("here"),
            initial_delivery_count=0,
            **options,
        )
        sender = Sender(self, link.name, link.handle, False)
        sender.attached = self.take(Attach, lambda item: item.name == link.name)
        assert sender.attached.target is not None, self.peer.take(Detach).error.description  # type: ignore[union-attr]
        sender.credited = self.take(Flow, lambda item: item.handle == sender.attached.handle)
        return sender

    def receiver(self, address: str | None = None, credit: int = 0, name: str = "", **options: Any) -> Receiver:
        """Attach a link on which the peer receives."""
        source = options.pop("source", None) or Source(address)
        link = self.attach(
            name or f"receiver-{self.next_handle}",
            True,
            source=source,
            target=options.pop("target", None) or Target("here"),
            **options,
        )
        receiver = Receiver(self, link.name, link.handle, True)
        receiver.attached = self.take(Attach, lambda item: item.name == link.name)
        assert receiver.attached.source is not None, self.peer.take(Detach).error.description  # type: ignore[union-attr]
        receiver.count = receiver.attached.initial_delivery_count or 0
        if credit:
            receiver.flow(credit)
        return receiver

    def controller(self, **options: Any) -> Controller:
        return Controller(self, self.sender(target=Coordinator(("amqp:local-transactions",)), **options))

    def dispose(
        self, first: int, last: int | None = None, state: Any = None, *, settled: bool = True, role: bool = True
    ) -> None:
        self.send(Disposition(role, first, last, settled, state))

    def outcome(self, number: int, *, role: bool = True) -> Disposition:
        """Return the next disposition about this delivery of the peer (or, with role false, of the broker)."""

        def concerns(item: Disposition) -> bool:
            last = item.first if item.last is None else item.last
            return item.role == role and item.first <= number <= last

        while True:
            item = next(filter(concerns, self.dispositions), None)
            if item is not None:
                break
            self.dispositions.append(self.take(Disposition))
        self.dispositions.remove(item)
        last = item.first if item.last is None else item.last
        for first, end in ((item.first, number - 1), (number + 1, last)):
            if first <= end:
                self.dispositions.append(Disposition(item.role, first, end, item.settled, item.state, channel=item.channel))
        return item

    def ended_with(self) -> str:
        """Return the condition of the broker's end, and answer it."""
        end = self.take(End)
        self.send(End())
        return "" if end.error is None else str(end.error.condition)

    def end(self) -> None:
        self.send(End())
        assert self.take(End).error is None


class Link:
    attached: Attach

    def __init__(self, session: Session, name: str, handle: int, role: bool) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        self.role = role

    def detached_with(self, handle: int | None = None) -> str:
        """Return the condition of the broker's detach; "" without an error."""
        number = handle if handle is not None else self.attached.handle
        detach = self.session.take(Detach, lambda item: item.handle == number)
        return "" if detach.error is None else str(detach.error.condition)

    def detach(self, closed: bool = True) -> Detach:
        """Detach, and wait for the reply."""
        self.session.send(Detach(self.handle, closed))
        return self.session.take(Detach, lambda item: item.handle == self.attached.handle)


class Sender(Link):
    credited: Flow
    count = 0

    def transfer(self, payload: bytes, **options: Any) -> None:
        """Send one transfer with these fields."""
        self.session.send(Transfer(self.handle, payload=payload, **options))

    def send(self, payload: bytes | None = None, **options: Any) -> int:
        """Send a delivery in one transfer; return its delivery-id."""
        session = self.session
        number = session.next_id
        session.next_id += 1
        self.count += 1
        self.transfer(
            message() if payload is None else payload,
            delivery_id=options.pop("delivery_id", number),
            delivery_tag=options.pop("delivery_tag", b"t%d" % number),
            message_format=options.pop("message_format", 0),
            **options,
        )
        return number

    def deliver(self, payload: bytes | None = None, **options: Any) -> None:
        """Send a delivery, and expect that it is accepted."""
        state = self.session.outcome(self.send(payload, **options)).state
        assert state is not None and name(state) == "Accepted", describe(state)

    def flow(self, **fields: Any) -> None:
        self.session.flow(handle=self.handle, delivery_count=fields.pop("delivery_count", self.count), **fields)


class Receiver(Link):
    count = 0

    def flow(self, credit: int, **fields: Any) -> None:
        """Grant credit, counted from the deliveries received so far."""
        self.session.flow(
            handle=self.handle, delivery_count=fields.pop("delivery_count", self.count), link_credit=credit, **fields
        )

    def get(self) -> Delivery:
        """Return the next complete delivery."""
        transfers: list[Transfer] = []
        while not transfers or (transfers[-1].more and not transfers[-1].aborted):
            transfers.append(self.session.take(Transfer, lambda item: item.handle == self.attached.handle))
            self.session.next_incoming += 1
        self.count += 1
        first = transfers[0]
        assert first.delivery_id is not None and first.delivery_tag is not None
        return Delivery(
            first.delivery_id,
            first.delivery_tag,
            any(item.settled for item in transfers),
            transfers,
            b"".join(item.payload for item in transfers),
        )

    def nothing(self) -> None:
        """Check that no delivery has arrived or is in transit."""
        self.session.sync()
        found = [item for item in self.session.peer.kept(Transfer) if item.handle == self.attached.handle]
        assert not found, f"{len(found)} transfers arrived"

    def accept(self, delivery: Delivery) -> None:
        from leveret.wire.amqp10.messaging import Accepted

        self.session.dispose(delivery.id, state=Accepted())


class Controller:
    """A control link."""

    def __init__(self, session: Session, link: Sender) -> None:
        self.session = session
        self.link = link

    def send(self, body: Composite, **options: Any) -> int:
        return self.link.send(b"\x00\x53\x77" + encode_composite(body), **options)

    def declare(self) -> bytes:
        state = self.session.outcome(self.send(Declare())).state
        assert isinstance(state, Declared), describe(state)
        return bytes(state.txn_id)

    def discharge(self, id: bytes, fail: bool | None = None) -> Any:
        """Return the state in the reply to the discharge."""
        return self.session.outcome(self.send(Discharge(id, fail))).state


def name(value: Any) -> str:
    return type(value).__name__


def describe(state: Any) -> str:
    error = getattr(state, "error", None)
    return name(state) + (f": {error.condition}: {error.description}" if error is not None else "")


def under(id: bytes, outcome: Composite | None = None) -> TransactionalState:
    return TransactionalState(id, outcome)


def message(
    body: bytes = b"m",
    *,
    header: Header | None = None,
    durable: bool | None = None,
    before: bytes = b"",
    properties: Properties | None = None,
    after: bytes = b"",
) -> bytes:
    """Return a message with one data section. `before` is between header and properties, `after` at its end."""
    data = b""
    if durable is not None:
        header = Header(durable)
    if header is not None:
        data += encode_composite(header)
    data += before
    if properties is not None:
        data += encode_composite(properties)
    return data + b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body + after


def section(code: int, value: Any) -> bytes:
    """Return a section that is a described value, for example a map of annotations."""
    return b"\x00\x53" + bytes((code,)) + (encode_list(value) if isinstance(value, list) else encode_value(value))


def body_of(payload: bytes) -> bytes:
    values = body_values(split(payload))
    assert len(values) == 1 and isinstance(values[0], bytes), values
    return values[0]


def header_of(payload: bytes) -> Header:
    """Return the header section, with the defaults if there is none."""
    from leveret.wire.amqp10.message import header

    return header(split(payload)) or Header()
