"""The settings, with their types, ranges, defaults and descriptions.

Sizes and durations are numbers, or strings with a unit ("128MiB", "30s"). Paths in a file are relative to that file. `kind`
names the function in `values` that reads the value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Size = Annotated[int, Meta(extra={"kind": "size"})]
Watermark = Annotated[float, Meta(extra={"kind": "watermark"})]
Seconds = Annotated[float, Meta(extra={"kind": "seconds"})]
FilePath = Annotated[str, Meta(extra={"kind": "path"})]
PathOrUrl = Annotated[str, Meta(extra={"kind": "path_or_url"})]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
QosGlobal = Literal["rabbitmq", "spec"]
# The names in `security.mechanisms.registry` and `storage.registry`, which the configuration must not import.
# tests/config/test_choices.py keeps them the same.
Mechanism = Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"]
Engine = Literal["sqlite", "memory"]


def about(description: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Meta:
    """Return the description and the bounds of a setting."""
    if gt is not None:
        return Meta(description=description, gt=gt, le=le)
    return Meta(description=description, ge=ge, le=le)


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all sections. Sections are immutable."""


class ServerCompatConfig(Section, frozen=True, kw_only=True):
    """Whether to follow the specification or RabbitMQ outside of vhosts."""

    strict: Annotated[
        bool,
        about(
            "Follow the text of the specifications even if clients rely on a deviation, in everything that does not "
            "depend on a vhost: framing, and everything before `connection.open` has succeeded. For the rest, see "
            "`vhosts.VHOST.compat.strict`."
        ),
    ] = False


class ServerConfig(Section, frozen=True, kw_only=True):
    """The process and its plain listener."""

    host: Annotated[
        str,
        about(
            "Address to listen on. `localhost` is both loopback addresses, an empty string all addresses of the machine."
        ),
    ] = "localhost"
    port: Annotated[int, about("Port of the plain listener; 0 picks a free one.", ge=0, le=65535)] = 5672
    plain: Annotated[
        bool,
        about(
            "Whether to open a plain listener, which also speaks TLS if `tls.cert` is set. Without it, the broker "
            "serves only TLS."
        ),
    ] = True
    data_dir: Annotated[
        FilePath, about("Directory for messages, metadata and the control socket; created if it does not exist.")
    ] = "~/.local/share/leveret"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], about("Minimum severity to log, on stderr.")] = (
        "info"
    )
    log_format: Annotated[
        Literal["text", "json"], about("Log each event as one line of text, or as one JSON object per line.")
    ] = "text"
    handshake_timeout: Annotated[
        Seconds, about("Time from the accepted socket to `connection.open`; slower clients are disconnected.", gt=0)
    ] = 10.0
    shutdown_timeout: Annotated[
        Seconds,
        about(
            "Time for the broker to stop after SIGTERM. The last 2 seconds (half of the time, if it is less than 4) "
            "are for the store, the rest for clients to answer `connection.close`. The store always gets 2 seconds. "
            "If it does not finish in time, the process exits with code 1; nothing that was confirmed is lost.",
            ge=0,
        ),
    ] = 5.0
    slow_turn: Annotated[
        Seconds,
        about(
            "A turn of the event loop that takes longer is logged, with the clients whose input it handled, "
            "and counted in `leveret status`; 0 disables this.",
            ge=0,
        ),
    ] = 0.1
    compat: Annotated[ServerCompatConfig, about("Compatibility.")] = field(default_factory=ServerCompatConfig)

    @property
    def data_path(self) -> Path:
        """The absolute path of the data directory."""
        return Path(self.data_dir).expanduser().absolute()


class TlsConfig(Section, frozen=True, kw_only=True):
    """The TLS listener; enabled if `cert` is set."""

    host: Annotated[str | None, about("Address of the TLS listener. Default: `server.host`.")] = None
    port: Annotated[int, about("Port of the TLS listener; 0 picks a free one.", ge=0, le=65535)] = 5671
    cert: Annotated[
        FilePath | None, about("Certificate chain in PEM, the server's certificate first. Enables the TLS listener.")
    ] = None
    key: Annotated[FilePath | None, about("Private key in PEM. Default: the key in the file of `cert`.")] = None
    key_password_file: Annotated[FilePath | None, about("File with the password of an encrypted key.")] = None
    ca: Annotated[FilePath | None, about("CA certificates in PEM to verify client certificates.")] = None
    verify: Annotated[
        Literal["none", "optional", "required"],
        about(
            "Whether to ignore client certificates (`none`), verify those that clients send (`optional`), or "
            "require them (`required`)."
        ),
    ] = "none"
    min_version: Annotated[Literal["1.2", "1.3"], about("Minimum TLS version.")] = "1.2"


class AmqpConfig(Section, frozen=True, kw_only=True):
    """Limits and defaults that the broker proposes to clients."""

    frame_max: Annotated[
        Size, about("Maximum frame size in bytes, proposed in `connection.tune`.", ge=4096, le=2147483647)
    ] = 131072
    channel_max: Annotated[
        int, about("Maximum number of channels per connection, proposed in `connection.tune`.", ge=1, le=65535)
    ] = 2047
    heartbeat: Annotated[
        int, about("Seconds between heartbeats, proposed in `connection.tune`; 0 disables them.", ge=0, le=65535)
    ] = 60
    max_message_size: Annotated[
        Size, about("Maximum body size of a message; a larger one closes its channel with 311.", ge=1)
    ] = 134217728
    qos_global: Annotated[
        QosGlobal,
        about(
            "Meaning of `global` in `basic.qos`: RabbitMQ's (false: each new consumer, true: the channel) or the "
            "specification's (false: the channel, true: the connection)."
        ),
    ] = "rabbitmq"


class Amqp09Config(Section, frozen=True, kw_only=True):
    """AMQP 0-9; settings that it shares with 0-9-1 are in `amqp`."""

    known_hosts: Annotated[
        list[Name], about("Brokers of the cluster, as `host:port`, announced to clients in `connection.open-ok`.")
    ] = field(default_factory=list)
    redirect: Annotated[
        str,
        about("`host:port` to which `connection.redirect` sends clients that do not set `insist`; empty to disable."),
    ] = ""
    resume_timeout: Annotated[
        Seconds,
        about(
            "How long the channels of a connection that was lost without a close wait for `channel.resume`, with "
            "their unacked messages; 0 ends them at once.",
            ge=0,
        ),
    ] = 10.0
    resume_channels: Annotated[
        int, about("Maximum number of interrupted channels per user; one more ends the oldest.", ge=0)
    ] = 100
    stream_backlog: Annotated[
        Size,
        about(
            "Bytes that a queue with messages of class `stream` may hold. Beyond that, it drops such messages, those "
            "with the lowest priority first.",
            ge=0,
        ),
    ] = 67108864


class Amqp10Config(Section, frozen=True, kw_only=True):
    """AMQP 1.0. `amqp.max_message_size` limits messages, as in the other protocols."""

    anonymous_user: Annotated[
        str,
        about(
            "User for clients that use SASL ANONYMOUS or no SASL; an empty string refuses them. `auth.loopback_users` "
            "applies to it too."
        ),
    ] = "guest"
    auto_create: Annotated[
        bool,
        about("Whether a link to a name that is neither a queue nor an exchange creates a durable queue with that name."),
    ] = True
    max_frame_size: Annotated[
        Size, about("Maximum size in bytes of a frame that clients may send.", ge=512, le=2147483647)
    ] = 131072
    sessions: Annotated[int, about("Maximum number of sessions per connection.", ge=1, le=65536)] = 256
    links: Annotated[int, about("Maximum number of links per session.", ge=1, le=65536)] = 1024
    connection_links: Annotated[int, about("Maximum number of links in all sessions of a connection.", ge=1)] = 4096
    unsettled: Annotated[
        int,
        about(
            "Maximum number of unsettled deliveries per connection; further deliveries wait until some are settled.", ge=64
        ),
    ] = 65_536
    idle_timeout: Annotated[
        Seconds,
        about(
            "Time without a frame after which a client is considered dead; 0 disables this. The broker "
            "announces half of it to clients.",
            ge=0,
        ),
    ] = 120.0
    link_credit: Annotated[int, about("Number of messages that a sender may send ahead.", ge=1, le=65535)] = 1000
    transaction_timeout: Annotated[
        Seconds, about("Time after which a transaction is rolled back; 0 disables this.", ge=0)
    ] = 0.0
    kept_links: Annotated[
        int,
        about(
            "Maximum number of links per user that may outlive their sessions: links with a timeout, a "
            "durability, or an expiry policy other than link-detach and session-end.",
            ge=1,
        ),
    ] = 10_000
    product: Annotated[str, about("`product` in the properties of open. RabbitMQ's clients require its name.")] = "RabbitMQ"
    version: Annotated[
        str, about("`version` in the properties of open. RabbitMQ's clients use the features of that version of RabbitMQ.")
    ] = "4.3.0"


class LimitsConfig(Section, frozen=True, kw_only=True):
    """Limits on the resources that clients use. 0 means no limit."""

    memory_high_watermark: Annotated[
        Watermark,
        about(
            "Memory use of the process above which publishers are blocked: a fraction of the machine's memory, or bytes.",
            ge=0,
        ),
    ] = 0.4
    disk_free: Annotated[Size, about("Free space in the data directory below which publishers are blocked.", ge=0)] = (
        52428800
    )
    connections: Annotated[int, about("Maximum number of open connections.", ge=0)] = 0
    unauthenticated: Annotated[
        int,
        about(
            "Maximum number of sockets whose clients have not opened a connection yet. One more replaces the oldest "
            "that has waited for 2.5 seconds, or is closed.",
            ge=0,
        ),
    ] = 4000
    unauthenticated_per_address: Annotated[
        int, about("The same per IPv4 address, and per 64-bit prefix of IPv6 addresses.", ge=0)
    ] = 1000
    connections_per_user: Annotated[int, about("Maximum number of connections per user.", ge=0)] = 0
    consumers_per_channel: Annotated[int, about("Maximum number of consumers per channel.", ge=0)] = 0
    unacked_per_channel: Annotated[
        int,
        about("Maximum number of unacked deliveries per channel, also without a prefetch; 0 for none.", ge=0),
    ] = 1_000_000
    queues_per_vhost: Annotated[int, about("Maximum number of queues per vhost.", ge=0)] = 0
    transaction_size: Annotated[
        Size, about("Maximum bytes of uncommitted publishes per transaction, 1,000 beside each body.", ge=1)
    ] = 268435456
    routing_keys: Annotated[
        int,
        about("Maximum number of distinct routing keys per message: its own, and those in its headers CC and BCC.", ge=1),
    ] = 1000
    routing_steps: Annotated[
        int,
        about(
            "Maximum number of comparisons with bindings, destinations and exchanges to route a message. "
            "100,000 take about 10 ms, during which no other client is served.",
            ge=100,
        ),
    ] = 100000
    routing_queues: Annotated[
        int,
        about(
            "Maximum number of queues that a message may be routed to. 10,000 take about 10 ms, during "
            "which other clients wait.",
            ge=1,
        ),
    ] = 10000


class StorageConfig(Section, frozen=True, kw_only=True):
    """Storage of durable messages and definitions."""

    engine: Annotated[
        Engine,
        about("`sqlite` stores durable data in the data directory; `memory` keeps nothing across a restart."),
    ] = "sqlite"
    synchronous: Annotated[
        Literal["full", "extra"],
        about("What is synced before a commit is confirmed: the file, or with `extra` also its directory (slower)."),
    ] = "full"
    reserve: Annotated[
        Size,
        about(
            "Disk space reserved for settlements when the disk is full. With less than this free, publishers are blocked.",
            ge=1048576,
        ),
    ] = 16777216
    segments_mode: Annotated[
        Literal["0600", "0640"],
        about(
            "File mode of sealed segments on this machine. `0640` lets the group of their directory read them, for "
            "example Spark's group. Their directories get `0700` or `0750`."
        ),
    ] = "0600"
    body_spool_threshold: Annotated[
        Size, about("Bodies larger than this are received into a file in the data directory instead of memory.", ge=4096)
    ] = 1048576


class StreamsConfig(Section, frozen=True, kw_only=True):
    """Sealing of streams: their oldest parts become Parquet files. Needs the extra `segments`."""

    sealing: Annotated[bool, about("Whether to seal streams. Segments that exist are served either way.")] = True
    directory: Annotated[
        PathOrUrl | None,
        about(
            "Directory of the segments, or a URL of any file system that fsspec supports, such as "
            "`s3://bucket/streams`. Default: `streams` in the data directory."
        ),
    ] = None
    storage_options_file: Annotated[
        FilePath | None,
        about(
            "TOML file (JSON if its name ends with `.json`) with options for the file system of the URL, such as "
            "credentials. Default: they come from the environment."
        ),
    ] = None
    segment_size: Annotated[Size, about("Bytes of bodies in the unsealed part of a stream that make a segment.", ge=1)] = (
        64000000
    )
    segment_age: Annotated[
        Seconds, about("Age of the oldest unsealed message at which a smaller part of a stream is sealed too.", gt=0)
    ] = 600.0
    merge_below: Annotated[
        Annotated[Size, Meta(ge=0)] | None,
        about(
            "Segments with fewer bytes of bodies are merged with their neighbours. Default: a quarter of "
            "`streams.segment_size`."
        ),
    ] = None
    grace: Annotated[
        Seconds,
        about("How long a file stays after its segment has been removed by retention, merged or rewritten.", ge=0),
    ] = 60.0
    iceberg: Annotated[
        bool, about("Whether each stream is also an Iceberg table over its segments. Needs the extra `iceberg`.")
    ] = False
    iceberg_properties_file: Annotated[
        FilePath | None,
        about(
            "TOML file (JSON if its name ends with `.json`) with the catalog's properties, as in pyiceberg: `type`, "
            "`uri`, `warehouse`, credentials. Default: SQLite in the data directory."
        ),
    ] = None
    iceberg_delay: Annotated[
        Seconds, about("Time after which the Iceberg table of a stream follows a change of its segments.", ge=0)
    ] = 5.0


class SinkTransactionsConfig(Section, frozen=True, kw_only=True):
    """Sink transactions: batches that a sink publishes atomically."""

    max_bytes: Annotated[Size, about("Maximum bytes of bodies per sink transaction.", ge=1)] = 17179869184
    max_per_vhost: Annotated[int, about("Maximum number of sink transactions per vhost.", ge=1)] = 10_000
    max_apps: Annotated[
        int,
        about(
            "Maximum number of sinks per vhost whose last batch is stored; only `leveret sink-transactions "
            "forget` removes one.",
            ge=1,
        ),
    ] = 10_000
    timeout: Annotated[
        Seconds,
        about(
            "Time after which an unused sink transaction is aborted: no publish, prepare or commit; 0 disables this.", ge=0
        ),
    ] = 86400.0


class UploadsConfig(Section, frozen=True, kw_only=True):
    """Resumable uploads of AMQP 0-9 clients (staged content)."""

    max_per_user: Annotated[int, about("Maximum number of uploads per user and vhost.", ge=1)] = 1000
    max_bytes: Annotated[Size, about("Maximum bytes of an upload.", ge=1)] = 17179869184
    timeout: Annotated[
        Seconds,
        about("Time after which an upload is dropped if its sender does not resume it; 0 disables this.", ge=0),
    ] = 86400.0


class DtxConfig(Section, frozen=True, kw_only=True):
    """Branches of distributed transactions."""

    timeout: Annotated[
        Seconds,
        about(
            "Time after which an unprepared branch is rolled back, unless its coordinator sets another one; "
            "0 disables this. A prepared branch waits for its coordinator, or for `leveret dtx`.",
            ge=0,
        ),
    ] = 300.0
    max_branches: Annotated[int, about("Maximum number of branches per vhost.", ge=1)] = 10_000
    max_bytes: Annotated[
        Size, about("Maximum bytes of publishes in all branches of a vhost; they are in memory.", ge=1)
    ] = 1073741824


class AuthConfig(Section, frozen=True, kw_only=True):
    """Authentication of clients."""

    mechanisms: Annotated[
        list[Mechanism],
        about(
            "SASL mechanisms to offer, best first. EXTERNAL is offered only to clients with a verified certificate, "
            "and SCRAM beside PLAIN and AMQPLAIN only if every user with a password can use it."
        ),
    ] = field(default_factory=lambda: ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "AMQPLAIN"])
    loopback_users: Annotated[list[Name], about("Users that may connect only from the same machine.")] = field(
        default_factory=lambda: ["guest"]
    )
    anonymous_user: Annotated[Name | None, about("User for clients that use ANONYMOUS.")] = None
    external_name: Annotated[
        Literal["common-name", "subject"],
        about("Part of a client certificate that is the user name: its common name, or its subject as in RFC 4514."),
    ] = "common-name"


class PermissionConfig(Section, frozen=True, kw_only=True):
    """Regular expressions for the names of a vhost's exchanges and queues; see `security.md`."""

    configure: Annotated[str, about("Names that the user may declare and delete.")] = ""
    write: Annotated[str, about("Names that the user may publish to, or bind as a destination.")] = ""
    read: Annotated[str, about("Names that the user may consume, get and purge, or bind as a source.")] = ""


class UserLimitsConfig(Section, frozen=True, kw_only=True):
    """Limits of one user; 0 means none."""

    max_connections: Annotated[
        int, about("Maximum number of connections of the user; 0: `limits.connections_per_user`.", ge=0)
    ] = 0
    max_channels: Annotated[int, about("Maximum number of channels in all connections of the user; 0: no limit.", ge=0)] = 0


class UserConfig(Section, frozen=True, kw_only=True):
    """A user. It has at most one of the three forms of a password; EXTERNAL and ANONYMOUS need none."""

    password: Annotated[str | None, about("Password in plain text.")] = None
    password_hash: Annotated[str | None, about("Argon2id hash of the password, as printed by `leveret users hash`.")] = None
    password_file: Annotated[FilePath | None, about("File whose first line is the password.")] = None
    tags: Annotated[list[Name], about("Labels; `administrator` may manage the broker.")] = field(default_factory=list)
    permissions: Annotated[
        dict[str, PermissionConfig], about("Permissions of the user by vhost; none in a vhost that is not listed.")
    ] = field(default_factory=dict)
    limits: Annotated[UserLimitsConfig, about("Limits of the user.")] = field(default_factory=UserLimitsConfig)


class CompatConfig(Section, frozen=True, kw_only=True):
    """Whether to follow the specification or RabbitMQ when they differ."""

    strict: Annotated[bool, about("Follow the text of the specification even if clients rely on RabbitMQ's deviation.")] = (
        False
    )


class VhostLimitsConfig(Section, frozen=True, kw_only=True):
    """Limits of one vhost; 0 means none."""

    max_queues: Annotated[int, about("Maximum number of queues; 0: `limits.queues_per_vhost`.", ge=0)] = 0
    max_connections: Annotated[int, about("Maximum number of connections; 0: no limit.", ge=0)] = 0


class RealmConfig(Section, frozen=True, kw_only=True):
    """A realm of AMQP 0-9: resources, and the users who may request tickets for them. `*` means all users."""

    resources: Annotated[
        str,
        about(
            "Regular expression for the full names of the exchanges and queues of the realm; the default "
            "exchange has an empty name."
        ),
    ] = ".*"
    exclusive: Annotated[list[Name], about("Users who may reserve the realm for one channel.")] = field(
        default_factory=list
    )
    passive: Annotated[list[Name], about("Users who may declare passively.")] = field(default_factory=list)
    active: Annotated[list[Name], about("Users who may declare, bind and delete.")] = field(default_factory=list)
    write: Annotated[list[Name], about("Users who may publish.")] = field(default_factory=list)
    read: Annotated[list[Name], about("Users who may consume, get and purge.")] = field(default_factory=list)


class VhostConfig(Section, frozen=True, kw_only=True):
    """A vhost. `/` always exists."""

    compat: Annotated[CompatConfig, about("Compatibility.")] = field(default_factory=CompatConfig)
    qos_global: Annotated[QosGlobal | None, about("Default: `amqp.qos_global`.")] = None
    limits: Annotated[VhostLimitsConfig, about("Limits of the vhost.")] = field(default_factory=VhostLimitsConfig)
    realms: Annotated[
        dict[str, RealmConfig],
        about("Realms of AMQP 0-9. If there are any, its methods need a ticket; permissions apply in addition."),
    ] = field(default_factory=dict)
    consumer_timeout: Annotated[
        Seconds,
        about(
            "Time within which a consumer must acknowledge a delivery; otherwise its channel is closed. 0: no limit.", ge=0
        ),
    ] = 0.0


class BrokerConfig(Section, frozen=True, kw_only=True):
    """The Python process of `leveret serve`. The defaults suit most brokers."""

    switch_interval: Annotated[
        Seconds,
        about("Python's thread switch interval. A longer one delays commits while the event loop is busy.", gt=0),
    ] = 0.0005
    gc_threshold: Annotated[
        int, about("Allocations between two collections of the youngest generation of the garbage collector.", ge=1)
    ] = 10000


class EventsConfig(Section, frozen=True, kw_only=True):
    """Events on the exchange `amq.leveret.events`."""

    sample: Annotated[
        int,
        about(
            "Publish one of this many events of the same kind and queue (or exchange). The field `sample` has the number.",
            ge=1,
        ),
    ] = 1


class Config(Section, frozen=True, kw_only=True):
    """The configuration. `Config()` has the defaults."""

    server: ServerConfig = field(default_factory=ServerConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    amqp: AmqpConfig = field(default_factory=AmqpConfig)
    amqp09: Amqp09Config = field(default_factory=Amqp09Config)
    amqp10: Amqp10Config = field(default_factory=Amqp10Config)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    sink_transactions: SinkTransactionsConfig = field(default_factory=SinkTransactionsConfig)
    uploads: UploadsConfig = field(default_factory=UploadsConfig)
    dtx: DtxConfig = field(default_factory=DtxConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    users: dict[str, UserConfig] = field(default_factory=dict)
    vhosts: dict[str, VhostConfig] = field(default_factory=dict)
    events: EventsConfig = field(default_factory=EventsConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
