"""A client of AMQP 1.0 in memory, built on the codec: it sends frames, runs the loop, and inspects the replies."""

from __future__ import annotations

from typing import Any, TypeVar

from leveret.protocols.amqp10.connection.connection import Connection
from leveret.wire.amqp10.composite import Composite, Performative
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.frames import AMQP, SASL, FrameReader, Header
from leveret.wire.amqp10.messaging import Accepted, Properties, Source, Target
from leveret.wire.amqp10.messaging import Header as MessageHeader
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from leveret.wire.amqp10.transport import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
)
from tests.protocols.support import LinkedPeer, Site

T = TypeVar("T", bound=Performative)


def make_site(*, user: str = "user", **options: Any) -> Site:
    """A site whose anonymous user is `user`."""
    own = {
        name: options.pop(name)
        for name in list(options)
        if name
        in ("auto_create", "sessions", "links", "idle_timeout", "link_credit", "max_frame_size", "transaction_timeout")
    }
    site = Site(**options)
    site.protocols.amqp10.settings.anonymous_user = user
    for name, value in own.items():
        setattr(site.protocols.amqp10.settings, name, value)
    return site


class Client:
    """One connection; `received` has every received frame that was not taken yet."""

    def __init__(
        self, site: Site, *, sasl: bool = False, container: str = "test", answer: int | None = None, **options: Any
    ) -> None:
        self.site = site
        self.container = container
        self.output = Output(1 << 20)
        self.reader = FrameReader(1 << 20, 1 << 20)
        self.received: list[Performative] = []
        self.peer = LinkedPeer(site, self, **options)  # type: ignore[arg-type]
        self.session = Connection(self.peer, site.protocols.amqp10, sasl)
        self.run()
        header = self.take(Header)
        assert header.protocol == ((SASL if sasl else AMQP) if answer is None else answer)

    def run(self) -> None:
        """Send and receive until nothing more happens."""
        while True:
            data = self.output.to_send()
            if data and not self.peer.closed:
                self.session.data_received(data)
            self.site.run()
            written = b"".join(self.peer.written)
            self.peer.written.clear()
            self.received.extend(self.reader.receive(written))
            if not data and not written:
                return

    def send(self, *frames: Performative) -> None:
        for frame in frames:
            self.output.send(frame)

    def take(self, kind: type[T]) -> T:
        """Remove and return the first frame of a kind; it must be there."""
        found = self.find(kind)
        assert found is not None, f"no {kind.__name__}, but {[type(item).__name__ for item in self.received]}"
        return found

    def find(self, kind: type[T]) -> T | None:
        for index, item in enumerate(self.received):
            if isinstance(item, kind):
                del self.received[index]
                return item
        return None

    def all(self, kind: type[T]) -> list[T]:
        self.run()
        found = [item for item in self.received if isinstance(item, kind)]
        self.received = [item for item in self.received if not isinstance(item, kind)]
        return found

    def login(self, user: str = "user", password: str | None = None, mechanism: str = "PLAIN") -> int:
        """SASL; the code of its outcome."""
        self.take(SaslMechanisms)
        secret = user if password is None else password
        self.send(SaslInit(mechanism, f"\0{user}\0{secret}".encode() if mechanism == "PLAIN" else b""))
        self.run()
        code = self.take(SaslOutcome).code
        if code == 0:
            self.output.send_header(AMQP)
        return code

    def open(self, **options: Any) -> Open:
        self.send(Open(options.pop("container_id", self.container), **options))
        self.run()
        answer = self.take(Open)
        self.output.max_frame_size = answer.max_frame_size
        return answer

    def begin(self, channel: int = 0, **options: Any) -> Session:
        session = Session(self, channel)
        self.send(
            Begin(
                options.pop("next_outgoing_id", 0),
                options.pop("incoming_window", 1000),
                options.pop("outgoing_window", 1000),
                channel=channel,
                **options,
            )
        )
        self.run()
        session.begun = self.take(Begin)
        assert session.begun.remote_channel == channel
        return session

    def error(self, kind: type[Close] | type[End] | type[Detach]) -> tuple[str, str]:
        """Return condition and description of the error in a received close, end or detach; ("", "") without one."""
        self.run()
        error = self.take(kind).error
        return ("", "") if error is None else (error.condition, error.description or "")

    def drop(self) -> None:
        """The socket breaks."""
        self.peer.closed = True
        self.session.connection_lost()
        self.site.run()


class Session:
    """A session of a client. It uses the next free handle and delivery-id."""

    begun: Begin

    def __init__(self, client: Client, channel: int) -> None:
        self.client = client
        self.channel = channel
        self.next_handle = 0
        self.next_id = 0

    def sender(self, address: str | None = "q", name: str = "", **options: Any) -> Sender:
        target = options.pop("target", Target(address))
        attach = self.attach(
            name or f"sender {self.next_handle}",
            False,
            target=target,
            source=options.pop("source", Source("here")),
            initial_delivery_count=0,
            **options,
        )
        sender = Sender(self, attach[0])
        sender.attached = attach[1]
        flow = self.client.find(Flow)
        sender.credit = 0 if flow is None else flow.link_credit or 0
        return sender

    def receiver(self, address: str | None = "q", credit: int = 0, name: str = "", **options: Any) -> Receiver:
        source = options.pop("source", Source(address))
        attach = self.attach(
            name or f"receiver {self.next_handle}",
            True,
            source=source,
            target=options.pop("target", Target("here")),
            **options,
        )
        receiver = Receiver(self, attach[0])
        receiver.attached = attach[1]
        if credit:
            receiver.flow(credit)
            self.client.run()
        return receiver

    def attach(self, name: str, role: bool, **options: Any) -> tuple[int, Attach]:
        handle = options.pop("handle", self.next_handle)
        self.next_handle = max(self.next_handle, handle) + 1
        self.client.send(Attach(name, handle, role, channel=self.channel, **options))
        self.client.run()
        return handle, self.client.take(Attach)

    def dispose(
        self,
        first: int | None,
        last: int | None = None,
        state: Composite | None = None,
        *,
        settled: bool = True,
        role: bool = True,
    ) -> None:
        assert first is not None, "a frame without a delivery-id"
        self.client.send(Disposition(role, first, last, settled, state, channel=self.channel))
        self.client.run()

    def end(self) -> None:
        self.client.send(End(channel=self.channel))
        self.client.run()
        assert self.client.take(End).error is None


class Link:
    attached: Attach

    def __init__(self, session: Session, handle: int) -> None:
        self.session = session
        self.client = session.client
        self.handle = handle

    def detach(self, closed: bool = True) -> Detach:
        self.client.send(Detach(self.handle, closed, channel=self.session.channel))
        self.client.run()
        return self.client.take(Detach)


class Sender(Link):
    credit = 0

    def send(self, payload: bytes = b"", *, settled: bool | None = None, run: bool = True, **options: Any) -> int:
        """Send a delivery in one frame; return its delivery-id."""
        number = self.session.next_id
        self.session.next_id += 1
        self.client.send(
            Transfer(
                self.handle,
                options.pop("delivery_id", number),
                options.pop("delivery_tag", number.to_bytes(4, "big")),
                0,
                settled,
                channel=self.session.channel,
                payload=payload or message(b"m"),
                **options,
            )
        )
        if run:
            self.client.run()
        return number

    def part(self, payload: bytes, **options: Any) -> None:
        """Send a frame as it is."""
        self.client.send(Transfer(self.handle, channel=self.session.channel, payload=payload, **options))

    def outcomes(self) -> list[tuple[int, int, bool, str]]:
        """Return the received dispositions: first, last, settled, and the name of the state."""
        return [
            (frame.first, frame.first if frame.last is None else frame.last, frame.settled, type(frame.state).__name__)
            for frame in self.client.all(Disposition)
        ]


class Receiver(Link):
    def flow(
        self, credit: int, *, delivery_count: int = 0, window: int = 1000, next_incoming_id: int = 0, **options: Any
    ) -> None:
        self.client.send(
            Flow(
                window,
                0,
                1000,
                next_incoming_id,
                self.handle,
                delivery_count,
                credit,
                channel=self.session.channel,
                **options,
            )
        )
        self.client.run()

    def deliveries(self) -> list[Transfer]:
        return self.client.all(Transfer)

    def bodies(self) -> list[bytes]:
        """Return the contents of the delivered data sections, each from a separate frame."""
        return [body_of(frame.payload) for frame in self.deliveries()]

    def accept(self, first: int | None, last: int | None = None) -> None:
        self.session.dispose(first, last, Accepted())


def message(
    body: bytes = b"m",
    *,
    durable: bool = False,
    header: MessageHeader | None = None,
    properties: Properties | None = None,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A message with one data section."""
    octets = b""
    if durable:
        header = MessageHeader(True)
    if header is not None:
        octets += encode_composite(header)
    octets += before
    if properties is not None:
        octets += encode_composite(properties)
    return octets + b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body + after


def body_of(payload: bytes) -> bytes:
    from leveret.wire.amqp10.decode import decode_value
    from leveret.wire.amqp10.sections import split

    sections = split(payload)
    section: Any = decode_value(payload, sections.body, sections.body_end)[0]
    return bytes(section.value)


def connect(site: Site, **options: Any) -> Client:
    """A connection that is open."""
    client = Client(site, **options)
    client.open()
    return client
