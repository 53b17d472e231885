"""Descriptions of the process and its connections for operators. Sizes are in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from leveret.broker.durations import Durations
from leveret.management.json_values import ClientTable
from leveret.management.structs import Reply

if TYPE_CHECKING:
    from leveret.broker.bodies import Body
    from leveret.broker.message import Entry, Message
    from leveret.broker.values import FieldTable
    from leveret.selectors import Filter


# Properties of a message whose values are texts or numbers.
PROPERTIES: Final = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
)
# Maximum number of ids in one request for complete messages.
MAX_EXPORTED_IDS: Final = 100
# Kinds of comparison of a field of a message with a value.
Match: TypeAlias = Literal[
    "equals",
    "not_equals",
    "less",
    "less_or_equal",
    "greater",
    "greater_or_equal",
    "prefix",
    "contains",
    "regex",
    "exists",
    "missing",
]
# Types of shovels, as RabbitMQ names them.
DYNAMIC: Final = "dynamic"
STATIC: Final = "static"
# States of shovels, as RabbitMQ names them.
STARTING: Final = "starting"
RUNNING: Final = "running"
TERMINATED: Final = "terminated"


class ProcessInfo(Reply, kw_only=True):
    """The process of the broker.

    Attributes:
        store: Where the log is stored, if not in the data directory, or "".
    """

    version: str
    build: str
    pid: int
    uptime: float
    listeners: list[str]
    data_dir: str
    config: str
    engine: str
    store: str
    memory: int
    memory_limit: int
    slow_turns: int
    longest_turn: float


class Histogram(Reply, array_like=True, kw_only=True):
    """A histogram of durations: the number in each bucket of `leveret.broker.durations.BOUNDS`, and the sum."""

    counts: list[int]
    total: float

    @classmethod
    def of(cls, durations: Durations | None) -> Histogram:
        """Return the state of a histogram; an empty one for None."""
        durations = durations or Durations()
        return cls(counts=list(durations.counts), total=durations.total)


class Performance(Reply, kw_only=True):
    """Measurements of the broker's process since its start.

    Attributes:
        turns: The durations of the longest turns of the event loop in each interval of at least 50 ms.
        loop_cpu: Seconds of CPU time of the event loop.
        commits: The durations of commits to the log.
    """

    turns: Histogram
    loop_cpu: float
    commits: Histogram


class TlsInfo(Reply, kw_only=True):
    """The TLS session of a connection, in the names of RabbitMQ, and the client's certificate: "" without one.

    Attributes:
        validity: The first and the last moment at which the certificate is valid.
    """

    protocol: str
    key_exchange: str
    cipher: str
    hash: str
    subject: str = ""
    issuer: str = ""
    validity: str = ""


class ConnectionInfo(Reply, kw_only=True):
    """A connection. `connected_at` is in milliseconds of Unix time; `reads` and `writes` count those of the socket.

    Attributes:
        name: `CLIENT -> BROKER`, or `CLIENT via PROXY -> BROKER` if a proxy has named the client, each with its port.
        websocket_path: The path of the WebSocket that carries the connection; "" without one.
        container_id: The container of an AMQP 1.0 client; "" over the other protocols.
        mechanism: The SASL mechanism of the login; "" before the client has chosen one.
        tls_info: The TLS session; None without TLS.
        unwritten: Bytes of output that the socket has not taken yet.
    """

    number: int
    name: str
    protocol: str
    user: str
    vhost: str
    state: str
    channels: int
    tls: bool
    websocket_path: str = ""
    bytes_in: int = msgspec.field(name="octets_in")
    bytes_out: int = msgspec.field(name="octets_out")
    client_properties: ClientTable
    frame_max: int
    channel_max: int
    heartbeat: int
    connected_at: int = 0
    reads: int = 0
    writes: int = 0
    container_id: str = ""
    mechanism: str = ""
    tls_info: TlsInfo | None = None
    unwritten: int = 0


class ChannelInfo(Reply, kw_only=True):
    """A channel, or an AMQP 1.0 session.

    Attributes:
        prefetch: The limit of unacked deliveries of the channel. `consumer_prefetch` is that of new consumers.
        published: Publishes, without those of an open transaction or one that was rolled back.
        uncommitted: Publishes of the open transaction. `uncommitted_acks` are its settlements.
        delivered: Deliveries and replies to basic.get.
        returned: Messages without a queue that were returned; `dropped` counts the others.
    """

    connection: int
    vhost: str
    user: str
    number: int
    consumers: int
    unacked: int
    prefetch: int
    published: int
    unconfirmed: int
    mode: str
    state: str
    uncommitted: int = 0
    uncommitted_acks: int = 0
    confirmed: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    got_empty: int = 0
    redelivered: int = 0
    acked: int = 0
    returned: int = 0
    dropped: int = 0
    consumer_prefetch: int = 0


class LinkInfo(Reply, kw_only=True):
    """An attached or suspended AMQP 1.0 link. `expires_at` is 0 if it does not expire.

    A suspended link has no values from `connection` to `receiver_settle_mode`, except for `unsettled`.

    Attributes:
        session: The channel of the session at the broker.
        delivery_count: The deliveries that flow control has counted, modulo 2^32.
    """

    vhost: str
    user: str
    container: str
    name: str
    role: str
    address: str
    state: str
    connection: int | None
    session: int | None = None
    credit: int | None = None
    delivery_count: int | None = None
    sender_settle_mode: str | None = None
    receiver_settle_mode: str | None = None
    unsettled: int
    durable: str
    expiry: str
    timeout: int
    expires_at: int


class SessionInfo(Reply, kw_only=True):
    """A session of AMQP 1.0. `unsettled` counts the deliveries to the client that it has not settled."""

    channel: int
    handle_max: int
    next_incoming_id: int
    incoming_window: int
    next_outgoing_id: int
    remote_incoming_window: int
    remote_outgoing_window: int
    unsettled: int


class ShovelInfo(Reply, kw_only=True):
    """A shovel. Of each end, the keys are those of its definition; "" for none.

    Attributes:
        type: `dynamic` for a parameter, `static` for one of the configuration.
        state: `starting`, `running`, or `terminated` until it starts again.
        user: The user with whose permissions the shovel acts at a URI without a host and a user; "" for an operator.
        changed: Unix time of the last change of the state.
        src_uri: Broker of the source without the credentials: the connected one, or the first one of the definition.
        dest_uri: The same of the destination.
        published: Messages that were published to the destination, including those that are published again.
        forwarded: Messages that were acknowledged to the source.
        pending: Messages that the destination has not confirmed.
        remaining: Messages to take before the shovel ends; None if it does not end, and unless it runs.
        restarts: Starts after a failure.
        error: Why the last run failed; "" if none did.
    """

    vhost: str
    name: str
    type: str
    state: str
    user: str
    changed: float
    src_uri: str
    src_protocol: str
    src_queue: str
    src_exchange: str
    src_exchange_key: str
    src_address: str
    dest_uri: str
    dest_protocol: str
    dest_queue: str
    dest_exchange: str
    dest_exchange_key: str
    dest_address: str
    published: int
    forwarded: int
    pending: int
    remaining: int | None
    restarts: int
    error: str


class SessionLinkInfo(Reply, kw_only=True):
    """A link of a session of AMQP 1.0, also one without a terminus, such as a link to the coordinator.

    Attributes:
        session: The channel of the session.
        handle: The handle of the client.
        receives: Whether the broker is the receiver.
        queue: The queue from which the broker sends; "" for none.
        max_message_size: The largest message that the receiver accepts, in bytes; 0 for no limit.
    """

    session: int
    handle: int
    name: str
    receives: bool
    address: str
    queue: str
    credit: int
    delivery_count: int
    sender_settle_mode: str
    max_message_size: int


class TransactionInfo(Reply, kw_only=True):
    """An open transaction of a channel or of an AMQP 1.0 coordinator link.

    Attributes:
        channel: The number of the channel, or the channel of the session of the coordinator link.
        kind: `tx` for class tx, `dtx` for work inside a branch of class dtx, `local` for AMQP 1.0.
        id: The txn-id of AMQP 1.0 in hexadecimal digits.
        size: Bytes of the publishes.
        state: `open`; `committing`; `failed` if it can only be rolled back, because of `reason`.
        age: Seconds since its declaration, or since the first publish or settlement of a channel's transaction.
    """

    vhost: str
    user: str
    connection: int
    channel: int
    kind: str
    id: str
    publishes: int
    settlements: int
    size: int
    state: str
    reason: str
    age: float


def number_of(owner: object) -> int | None:
    """Return the number of a connection or channel; None for an internal owner, and for no owner."""
    return getattr(owner, "number", None)


class EncodedMessage(NamedTuple):
    """A message to publish: whether it is of AMQP 1.0, its content header or its sections before the body, and its body."""

    is_amqp10: bool
    header: bytes
    body: bytes


class MessageCodec(Protocol):
    """Encoder and decoder of messages and of arguments as management describes them."""

    def encode(self, address: bytes, body: bytes, properties: dict[str, Any], user: str) -> Message:
        """Return a message with properties of class basic. Raises `PreconditionFailed` if one is invalid."""

    def copy_keys(self, message: Message) -> list[str]:
        """Return the routing keys of the CC and BCC headers, and remove BCC."""

    def decode(self, entry: Entry) -> tuple[FieldTable, Body]:
        """Return the properties and the body of an entry."""

    def timestamp(self, message: Message) -> int | None:
        """Return the property `timestamp` in seconds; None if there is none."""

    def is_selected(self, message: Message, entry: Entry | None, selector: Filter) -> bool:
        """Return whether a message in its place, or without one, matches a selector."""

    def typed(self, entry: Entry) -> Callable[[], dict[str, Any]]:
        """Return a function that describes all but the payload of an entry as JSON with AMQP types, in any thread."""

    def encode_typed(self, fields: Mapping[str, Any], body: bytes, user: str) -> EncodedMessage:
        """Encode what `typed` describes, in any thread. Raises `ValueError` if it is invalid."""

    def encode_arguments(self, arguments: FieldTable) -> bytes:
        """Return arguments in AMQP 0-9-1; b"" if JSON represents them without loss."""

    def decode_arguments(self, encoded: bytes) -> FieldTable:
        """Return the arguments that `encode_arguments` or a client has encoded. Raises `ValueError` if they are invalid."""

    def make(self, address: bytes, encoded: EncodedMessage) -> Message:
        """Return a message that is published now. Raises `PreconditionFailed` if a property is invalid."""


class ConnectedSession(Protocol):
    """The part of a connection that management uses."""

    number: int

    def describe(self) -> ConnectionInfo: ...

    def describe_channels(self) -> Iterable[ChannelInfo]: ...

    def describe_transactions(self) -> Iterable[TransactionInfo]: ...

    def describe_sessions(self) -> Iterable[SessionInfo]: ...

    def describe_links(self) -> Iterable[SessionLinkInfo]: ...

    def shut_down(self, reason: str) -> None: ...


class ShovelRegistry(Protocol):
    """The part of the shovels that management uses. Methods raise `NotFound`."""

    def describe(self) -> Iterable[ShovelInfo]: ...

    def show(self, vhost: str, name: str) -> ShovelInfo: ...

    def restart(self, vhost: str, name: str) -> None: ...


class LinkRegistry(Protocol):
    """The part of the link registry that management uses. Methods raise `BrokerError`."""

    def describe(self) -> Iterable[LinkInfo]: ...

    def release(self, vhost: str, user: str, container: str, name: str, role: str) -> int: ...

    def delete(self, vhost: str, user: str, container: str, name: str, role: str) -> None: ...
