"""Sessions in memory: the broker's side of a connection, and a client built from the same wire engine in the other role.

`Site` is a broker with its users and its event loop, which is a list; `Client` is a connection to it. A call sends one
method, runs all callbacks, and returns the reply. `Client.received` collects all other commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leveret.broker.bodies import StoredBody
from leveret.broker.broker import Broker, VhostSettings
from leveret.broker.log import Log
from leveret.broker.message import make_address
from leveret.node.composition import header_readers
from leveret.protocols.amqp09.contents.policy import content_policies
from leveret.protocols.amqp091.connection.base import BaseConnection
from leveret.protocols.amqp091.connection.connection import Connection
from leveret.protocols.ingress_throttle import FIRST_READ
from leveret.protocols.opening import Protocols
from leveret.protocols.peer import Peer
from leveret.protocols.services import Services, SessionSettings, VhostSessionSettings
from leveret.security.passwords import Hasher
from leveret.security.permissions import Permission
from leveret.security.users import DeclaredUser, User, UserStore
from leveret.storage.memory import MemoryLog
from leveret.wire.amqp0.commands import Ack, Command, ContentMethod, Deliver, Error, Method, Nack
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.specs import V0_9_1

BASIC = 60


class QuickHasher(Hasher):
    """Hasher that stores passwords unhashed, to save time."""

    def verify(self, hash: str, password: bytes) -> bool:
        return False


class Site:
    """A broker, its services, and the pending callbacks of its event loop."""

    def __init__(
        self,
        log: Log | None = None,
        *,
        overflow: Log | None = None,
        strict: bool = False,
        vhost_settings: VhostSessionSettings | None = None,
        hasher: Hasher | None = None,
        **settings: Any,
    ) -> None:
        self.posted: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.log = log if log is not None else MemoryLog()
        self.log.start(self.posted.append)
        if overflow is not None:
            overflow.start(self.posted.append)
        self.broker = Broker(self.log, overflow)
        self.broker.jobs.call_soon = self.posted.append
        self.vhost = self.broker.add_vhost("/", VhostSettings(strict=strict))
        self.broker.header_readers.update(header_readers())
        for format, policy in content_policies().items():
            self.broker.content_policies[format] = policy
        self.users = UserStore(hasher=hasher or QuickHasher())
        self.allow("user", "/", Permission(".*", ".*", ".*"))
        settings.setdefault("heartbeat", 0)
        self.services = Services(self.broker, self.users, SessionSettings(**settings))
        self.protocols = Protocols(self.services)
        self.protocols.amqp09.start(self.posted.append)
        if vhost_settings is not None:
            self.services.vhost_settings["/"] = vhost_settings
        self.broker.end_turn()

    def allow(self, name: str, vhost: str, permission: Permission | None, **more: Any) -> None:
        """Declare a user with these permissions in one vhost. The password is the user name."""
        self.declared = {
            **getattr(self, "declared", {}),
            name: DeclaredUser(
                user=User(name=name, permissions={vhost: permission} if permission is not None else {}, **more),
                password=name.encode(),
            ),
        }
        self.users.declare(self.declared)

    def connect(self, **options: Any) -> Client:
        """Return a connection after its handshake, which the broker may refuse."""
        client = Client(self, **options)
        client.open()
        return client

    def channel(self, **options: Any) -> Channel:
        """Return an open channel on a separate connection."""
        return self.connect(**options).channel()

    def run(self) -> None:
        """Run everything that is due now."""
        while True:
            self.broker.end_turn()
            if not self.posted:
                return
            self.posted.pop(0)()


class LinkedPeer(Peer):
    """The broker's side of a socket. The client reads its output unless it is `deaf`."""

    def __init__(self, site: Site, client: Client, **options: Any) -> None:
        super().__init__()
        self.site = site
        self.client = client
        self.name = "test"
        self.host = options.get("host", "127.0.0.1")
        self.local = self.host == "127.0.0.1"
        self.written: list[bytes] = []
        self.closed = False
        self.aborted = False
        self.reading = True
        self.limit = FIRST_READ
        self.slowed = False
        self.writable = True

    def write(self, data: bytes) -> None:
        assert not self.aborted
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def limit_reads(self, size: int, slowed: bool) -> None:
        self.limit = size
        self.slowed = slowed

    def is_writable(self) -> bool:
        return self.writable

    def unwritten(self) -> int:
        return sum(len(data) for data in self.written)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.site.posted.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.site.later.append((seconds, callback))

    def run_blocking(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        result = function()
        self.site.posted.append(lambda: done(result))


class FuzzedPeer(Peer):
    """The broker's side of a socket in memory, for a client that sends anything and never waits.

    closed  the broker closed the connection, or is about to
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.name = "fuzz"
        self.host = "127.0.0.1"
        self.local = True
        self.closed = False

    def close(self) -> None:
        self.closed = True

    finish = abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def limit_reads(self, size: int, slowed: bool) -> None:
        pass

    def unwritten(self) -> int:
        return 0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.site.posted.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Never call back: a client that never waits has disconnected by then."""

    def run_blocking(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        result = function()
        self.site.posted.append(lambda: done(result))


class Client:
    """A client. `received` collects all received commands except those that a call returned."""

    version = V0_9_1

    def __init__(
        self,
        site: Site,
        *,
        user: str = "user",
        password: str | None = None,
        vhost: str = "/",
        capabilities: dict[str, bool] | None = None,
        frame_max: int = 0,
        **options: Any,
    ) -> None:
        self.site = site
        self.user = user
        self.frame_max = frame_max
        self.password = user if password is None else password
        self.vhost = vhost
        self.capabilities = {
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "basic.nack": True,
            "publisher_confirms": True,
            "authentication_failure_close": True,
        } | (capabilities or {})
        self.received: list[Command] = []
        self.deaf = False
        self.waiting_to_be_read: list[bytes] = []
        self.channels: dict[int, Channel] = {}
        self.peer = LinkedPeer(site, self, **options)
        self.engine = Engine(CLIENT, self.version)
        self.session = self.make_session()

    def make_session(self) -> BaseConnection:
        """The broker's side of this connection."""
        return Connection(self.peer, self.site.services)

    def open(self) -> None:
        """Perform the handshake. `received` ends with connection.open-ok or the refusal."""
        self.run()
        assert self.take("connection.start") is not None
        self.engine.send(
            0,
            "connection.start-ok",
            {
                "client_properties": {"capabilities": self.capabilities},
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
            {
                "channel_max": self.engine.channel_max,
                "frame_max": self.frame_max or self.engine.frame_max,
                "heartbeat": 0,
            },
        )
        self.engine.send(0, "connection.open", {"virtual_host": self.vhost})
        self.run()
        self.take("connection.open-ok")

    @property
    def is_open(self) -> bool:
        return self.session.opened and not self.session.closing and not self.peer.closed

    def channel(self, number: int = 0) -> Channel:
        number = number or len(self.channels) + 1
        channel = Channel(self, number)
        self.channels[number] = channel
        self.call(number, "channel.open", "channel.open-ok")
        return channel

    # Traffic

    def flush(self) -> None:
        """Pass the sent data to the broker without running callbacks."""
        data = self.engine.to_send()
        if data:
            self.session.data_received(data)

    def run(self) -> None:
        """Send and receive until nothing more happens."""
        while True:
            self.flush()
            self.site.run()
            if not self._read():
                return

    def _read(self) -> bool:
        """Process received data, and return whether there was any."""
        for other in [session for session in self.site.services.sessions if isinstance(session, BaseConnection)]:
            peer = other.peer
            if isinstance(peer, LinkedPeer) and peer.written and not peer.client.deaf:
                data = b"".join(peer.written)
                peer.written.clear()
                peer.client.received.extend(peer.client.engine.receive(data))
        if self.peer.written and not self.deaf:
            data = b"".join(self.peer.written)
            self.peer.written.clear()
            self.received.extend(self.engine.receive(data))
        return self.engine.pending > 0

    def take(self, name: str, channel: int = 0) -> Method | None:
        """Remove and return the first method of that name on a channel."""
        for index, command in enumerate(self.received):
            if isinstance(command, Method) and command.name == name and command.channel == channel:
                del self.received[index]
                return command
        return None

    def call(self, channel: int, name: str, answer: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a method and return the arguments of its reply. A refusal raises an AssertionError that shows it."""
        self.engine.send(channel, name, arguments or {})
        self.run()
        taken = self.take(answer, channel)
        assert taken is not None, f"no {answer} for {name}, but {[shown(item) for item in self.received]}"
        return taken.arguments

    def refusal(self) -> tuple[int, str]:
        """Return reply code and text of the received channel.close or connection.close; (0, "") for none."""
        for index, command in enumerate(self.received):
            if isinstance(command, Method) and command.name in ("channel.close", "connection.close"):
                del self.received[index]
                if command.name == "channel.close":
                    self.engine.send(command.channel, "channel.close-ok", {})
                    self.flush()
                return command.arguments["reply_code"], command.arguments["reply_text"]
        return 0, ""

    def drop(self) -> None:
        """Break the socket."""
        self.peer.closed = True
        self.session.connection_lost()
        self.site.run()


class Channel:
    """A channel of a client."""

    def __init__(self, client: Client, number: int) -> None:
        self.client = client
        self.number = number

    def call(self, name: str, answer: str, **arguments: Any) -> dict[str, Any]:
        return self.client.call(self.number, name, answer, arguments)

    def send(self, name: str, **arguments: Any) -> None:
        self.client.engine.send(self.number, name, arguments)

    def run(self) -> None:
        self.client.run()

    def declare(
        self,
        queue: str = "q",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        answer = self.call(
            "queue.declare",
            "queue.declare-ok",
            queue=queue,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments or {},
        )
        return str(answer["queue"])

    def publish(
        self,
        key: str = "q",
        body: bytes = b"m",
        *,
        exchange: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """Send a publish, which reaches the broker with the next `run`, `flush` or call."""
        header = encode_header(BASIC, len(body), properties)
        self.client.engine.send_publish(
            self.number, make_address(exchange, key), mandatory | immediate << 1, header, body, len(body)
        )

    def consume(
        self,
        queue: str = "q",
        *,
        tag: str = "",
        no_ack: bool = False,
        no_local: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        answer = self.call(
            "basic.consume",
            "basic.consume-ok",
            queue=queue,
            consumer_tag=tag,
            no_ack=no_ack,
            no_local=no_local,
            exclusive=exclusive,
            arguments=arguments or {},
        )
        return str(answer["consumer_tag"])

    def qos(self, count: int, size: int = 0, everywhere: bool = False) -> None:
        self.call("basic.qos", "basic.qos-ok", prefetch_count=count, prefetch_size=size, **{"global": everywhere})

    def ack(self, tag: int, multiple: bool = False) -> None:
        self.client.engine.send_ack(self.number, tag, multiple)

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> None:
        self.client.engine.send_nack(self.number, tag, multiple, requeue)

    def reject(self, tag: int, requeue: bool = True) -> None:
        self.client.engine.send_reject(self.number, tag, requeue)

    def get(self, queue: str = "q", no_ack: bool = True) -> ContentMethod | None:
        """Return the message of a basic.get; None if the queue is empty."""
        self.send("basic.get", queue=queue, no_ack=no_ack)
        self.run()
        if self.client.take("basic.get-empty", self.number) is not None:
            return None
        taken = self.client.take("basic.get-ok", self.number)
        assert isinstance(taken, ContentMethod), [shown(item) for item in self.client.received]
        return taken

    def bodies(self, queue: str = "q") -> list[bytes]:
        """Empty a queue with basic.get, and return the bodies."""
        found = []
        while (taken := self.get(queue)) is not None:
            found.append(bytes_of(taken.body))
        return found

    def deliveries(self) -> list[Deliver]:
        """Remove and return the deliveries on this channel."""
        self.run()
        mine = [item for item in self.client.received if isinstance(item, Deliver) and item.channel == self.number]
        self.client.received = [item for item in self.client.received if item not in mine]
        return mine

    def delivered(self) -> list[bytes]:
        return [bytes_of(item.body) for item in self.deliveries()]

    def confirms(self) -> list[tuple[str, int, bool]]:
        """Remove and return the received acks and nacks, as (name, tag, multiple)."""
        mine = [item for item in self.client.received if isinstance(item, (Ack, Nack)) and item.channel == self.number]
        self.client.received = [item for item in self.client.received if item not in mine]
        return [("ack" if isinstance(item, Ack) else "nack", item.delivery_tag, item.multiple) for item in mine]

    def close(self) -> None:
        self.call("channel.close", "channel.close-ok", reply_code=200, reply_text="", class_id=0, method_id=0)


def bytes_of(body: bytes | list[bytes] | StoredBody) -> bytes:
    assert not isinstance(body, StoredBody), "the body is on disk"
    return body if isinstance(body, bytes) else b"".join(body)


def properties_of(item: Deliver | ContentMethod) -> dict[str, Any]:
    return decode_header(item.header)[2]


def shown(item: Command) -> str:
    if isinstance(item, Method):
        return f"{item.name} {item.arguments}"
    if isinstance(item, Error):
        return f"error {item.code} {item.text}"
    return type(item).__name__
