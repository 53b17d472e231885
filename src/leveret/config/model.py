"""Every key of the configuration, with its type, range, default and meaning.

Octets may be given as a number or as text with a unit ("128MiB"), and so may seconds ("30s"); a path in a file is
relative to that file. `kind` names the reader in `values` that makes the value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Size = Annotated[int, Meta(extra={"kind": "size"})]
Watermark = Annotated[float, Meta(extra={"kind": "watermark"})]
Seconds = Annotated[float, Meta(extra={"kind": "seconds"})]
FilePath = Annotated[str, Meta(extra={"kind": "path"})]
Place = Annotated[str, Meta(extra={"kind": "place"})]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
QosGlobal = Literal["rabbitmq", "spec"]


def about(description: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Meta:
    """What a key means, and its bounds."""
    if gt is not None:
        return Meta(description=description, gt=gt, le=le)
    return Meta(description=description, ge=ge, le=le)


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, so that whoever holds one can rely on it."""


class ServerCompatConfig(Section, frozen=True, kw_only=True):
    """Whether the specification or RabbitMQ is followed outside any vhost."""

    strict: Annotated[
        bool,
        about(
            "Follow the text of the specifications, where clients rely on a deviation from it, in what does not depend"
            " on a vhost: framing, and everything before `connection.open` has succeeded. For the rest there is"
            " `vhosts.VHOST.compat.strict`."
        ),
    ] = False


class ServerConfig(Section, frozen=True, kw_only=True):
    """The process and its plain listener."""

    host: Annotated[
        str,
        about("Address to listen on. `localhost` takes both loopback addresses, an empty text all of the machine's."),
    ] = "localhost"
    port: Annotated[int, about("Port of the plain listener; 0 takes a free one.", ge=0, le=65535)] = 5672
    plain: Annotated[
        bool,
        about(
            "Whether there is a plain listener, which also speaks TLS where `tls.cert` is set; "
            "without it only TLS is served."
        ),
    ] = True
    data_dir: Annotated[
        FilePath, about("Directory of messages, metadata and control socket; created where missing.")
    ] = "~/.local/share/leveret"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about("Least severity that is logged, on stderr.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], about("An event is one line of text, or one JSON object in a line.")
    ] = "text"
    handshake_timeout: Annotated[
        Seconds, about("Time from the accepted socket to `connection.open`; slower clients are closed.", gt=0)
    ] = 10.0
    shutdown_timeout: Annotated[
        Seconds,
        about(
            "Time in which the broker stops after SIGTERM. The last 2 seconds (half of it, if it is less than 4) are the"
            " store's, the rest is for clients to answer `connection.close`. When the store does not finish in time, the"
            " process ends with exit code 1; nothing that was confirmed is lost. The store has 2 seconds in any case.",
            ge=0,
        )
    ] = 5.0
    slow_turn: Annotated[
        Seconds,
        about("A turn of the event loop that takes longer is logged, with the clients whose input it has handled, and"
              " counted in `leveret status`; 0 turns that off.", ge=0),
    ] = 0.1
    compat: Annotated[ServerCompatConfig, about("Compatibility.")] = field(default_factory=ServerCompatConfig)

    @property
    def data_path(self) -> Path:
        """The data directory, absolute."""
        return Path(self.data_dir).expanduser().absolute()


class TlsConfig(Section, frozen=True, kw_only=True):
    """The TLS listener; it exists where `cert` is set."""

    host: Annotated[str | None, about("Address of the TLS listener; absent: that of `server.host`.")] = None
    port: Annotated[int, about("Port of the TLS listener; 0 takes a free one.", ge=0, le=65535)] = 5671
    cert: Annotated[
        FilePath | None, about("Certificate chain in PEM, the server's first. Turns the TLS listener on.")
    ] = None
    key: Annotated[FilePath | None, about("Private key in PEM; absent: it is in the file of `cert`.")] = None
    key_password_file: Annotated[FilePath | None, about("File with the password of an encrypted key.")] = None
    ca: Annotated[FilePath | None, about("Certificates in PEM that client certificates are verified against.")] = None
    verify: Annotated[
        Literal["none", "optional", "required"],
        about("Client certificates are not asked for, verified where given, or required."),
    ] = "none"
    min_version: Annotated[Literal["1.2", "1.3"], about("Oldest TLS version that is accepted.")] = "1.2"


class AmqpConfig(Section, frozen=True, kw_only=True):
    """What the broker proposes to its clients."""

    frame_max: Annotated[
        Size, about("Largest frame, in octets, proposed in `connection.tune`.", ge=4096, le=2147483647)
    ] = 131072
    channel_max: Annotated[
        int, about("Channels of one connection, proposed in `connection.tune`.", ge=1, le=65535)
    ] = 2047
    heartbeat: Annotated[
        int, about("Seconds between heartbeats, proposed in `connection.tune`; 0 for none.", ge=0, le=65535)
    ] = 60
    max_message_size: Annotated[
        Size, about("Largest body of a message; a larger one closes its channel with 311.", ge=1)
    ] = 134217728
    qos_global: Annotated[
        QosGlobal,
        about(
            "Meaning of `global` in `basic.qos`: RabbitMQ's (false: each new consumer, true: the channel) or the "
            "specification's (false: the channel, true: the connection)."
        ),
    ] = "rabbitmq"


class Amqp09Config(Section, frozen=True, kw_only=True):
    """AMQP 0-9; what it shares with 0-9-1 is in `amqp`."""

    known_hosts: Annotated[
        list[Name], about("Brokers of the cluster, as `host:port`, that clients are told of in `connection.open-ok`.")
    ] = field(default_factory=list)
    redirect: Annotated[
        str,
        about("`host:port` that clients are sent to by `connection.redirect`, unless they insist; an empty text for none."),
    ] = ""
    resume_timeout: Annotated[
        Seconds,
        about(
            "How long channels of a connection that was lost without a close wait for `channel.resume`, with what they "
            "hold; 0 ends them at once.",
            ge=0,
        ),
    ] = 10.0
    resume_channels: Annotated[int, about("Interrupted channels of one user; one too many ends the oldest.", ge=0)] = 100
    stream_backlog: Annotated[
        Size,
        about(
            "Octets that a queue with messages of class `stream` may hold; beyond that it drops such messages, those of "
            "the lowest priority first.",
            ge=0,
        ),
    ] = 67108864


class Amqp10Config(Section, frozen=True, kw_only=True):
    """AMQP 1.0; sizes of messages are limited by `amqp.max_message_size` as in the other protocols."""

    anonymous_user: Annotated[
        str,
        about(
            "User that clients act as who use SASL ANONYMOUS or no SASL at all; an empty text lets none of them in. "
            "`auth.loopback_users` holds for it, too."
        ),
    ] = "guest"
    auto_create: Annotated[
        bool,
        about("Whether a link to a name that is neither queue nor exchange creates a durable queue of that name."),
    ] = True
    max_frame_size: Annotated[Size, about("Largest frame, in octets, that clients may send.", ge=512, le=2147483647)] = (
        131072
    )
    sessions: Annotated[int, about("Sessions of one connection.", ge=1, le=65536)] = 256
    links: Annotated[int, about("Links of one session.", ge=1, le=65536)] = 1024
    connection_links: Annotated[int, about("Links of all sessions of one connection.", ge=1)] = 4096
    unsettled: Annotated[
        int, about("Deliveries of one connection that may be unsettled; more wait until some are settled.", ge=64)
    ] = 65_536
    idle_timeout: Annotated[
        Seconds,
        about("Time without a frame after which a client is taken for dead; 0: never. Clients are told half of it.", ge=0),
    ] = 120.0
    link_credit: Annotated[int, about("Messages that a sender may send ahead.", ge=1, le=65535)] = 1000
    transaction_timeout: Annotated[
        Seconds, about("Time that a transaction may take; then it is rolled back. 0: as long as it likes.", ge=0)
    ] = 0.0
    kept_links: Annotated[
        int, about("Links of a user that may outlive their sessions: those with a timeout, a durability, or an expiry"
                   " policy other than link-detach and session-end.", ge=1)
    ] = 10_000
    product: Annotated[
        str, about("`product` in the properties of open. RabbitMQ's clients insist on its name.")
    ] = "RabbitMQ"
    version: Annotated[
        str, about("`version` in the properties of open. RabbitMQ's clients use what that version of it has.")
    ] = "4.3.0"


class LimitsConfig(Section, frozen=True, kw_only=True):
    """What clients together may use. 0 means no limit."""

    memory_high_watermark: Annotated[
        Watermark,
        about(
            "Memory of the process above which publishers are held back: a share of the machine's memory, or octets.",
            ge=0,
        ),
    ] = 0.4
    disk_free: Annotated[
        Size, about("Free space in the data directory below which publishers are held back.", ge=0)
    ] = 52428800
    connections: Annotated[int, about("Connections of the broker that are open.", ge=0)] = 0
    unauthenticated: Annotated[
        int,
        about(
            "Sockets whose clients have not opened a connection yet. One more takes the place of the oldest that has waited"
            " for 2.5 seconds, or is closed.",
            ge=0,
        ),
    ] = 4000
    unauthenticated_per_address: Annotated[
        int, about("The same for each address of IPv4, and for the first 64 bits of each of IPv6.", ge=0)
    ] = 1000
    connections_per_user: Annotated[int, about("Connections of one user.", ge=0)] = 0
    consumers_per_channel: Annotated[int, about("Consumers of one channel.", ge=0)] = 0
    unacked_per_channel: Annotated[
        int,
        about("Deliveries of one channel that may wait for acknowledgement, also without a prefetch.", ge=0),
    ] = 0
    queues_per_vhost: Annotated[int, about("Queues of one vhost.", ge=0)] = 0
    transaction_size: Annotated[
        Size, about("Octets that the uncommitted publishes of one transaction may hold.", ge=1)
    ] = 268435456
    routing_keys: Annotated[
        int, about("Distinct routing keys of one message: its own, and those of its headers CC and BCC.", ge=1)
    ] = 1000
    routing_steps: Annotated[
        int,
        about("Comparisons with bindings, destinations and exchanges that routing one message may take. 100,000 take about"
              " 10 ms, in which nobody else is served.", ge=100),
    ] = 100000
    routing_queues: Annotated[
        int,
        about("Queues that one message may go to. 10,000 take about 10 ms, in which other clients wait.", ge=1),
    ] = 10000


class StorageConfig(Section, frozen=True, kw_only=True):
    """Where durable things live."""

    engine: Annotated[
        Literal["sqlite", "memory"],
        about("`sqlite` keeps what is durable in the data directory; `memory` keeps nothing across a restart."),
    ] = "sqlite"
    synchronous: Annotated[
        Literal["full", "extra"],
        about("What is synced before a commit is confirmed: the file, or with `extra` its directory too (slower)."),
    ] = "full"
    reserve: Annotated[
        Size,
        about(
            "Disk space that is held back for settling when the disk is full. With less than this free, publishers are "
            "held back.",
            ge=1048576,
        ),
    ] = 16777216
    segments_mode: Annotated[
        Literal["0600", "0640"],
        about(
            "Mode of sealed segments that are kept on this machine: `0640` lets the group of their directory read them, "
            "Spark's for example. Their directories get `0700` or `0750`."
        ),
    ] = "0600"
    body_spool_threshold: Annotated[
        Size, about("Bodies larger than this are received into a file of the data directory, not into memory.", ge=4096)
    ] = 1048576


class StreamsConfig(Section, frozen=True, kw_only=True):
    """How streams are sealed: their oldest parts become Parquet files. Needs the extra `segments`."""

    sealing: Annotated[
        bool, about("Whether streams are sealed. What was sealed before is served either way.")
    ] = True
    directory: Annotated[
        Place | None,
        about(
            "Directory of the segments, or a URL of any file system that fsspec knows, such as `s3://bucket/streams`; "
            "absent: `streams` in the data directory."
        ),
    ] = None
    storage_options_file: Annotated[
        FilePath | None,
        about(
            "File in TOML, or JSON where it is called so, with what the file system of the URL is told besides, such as "
            "credentials. Without it that comes from the environment."
        ),
    ] = None
    segment_size: Annotated[
        Size, about("Octets of bodies in a stream's unsealed part that make a segment of it.", ge=1)
    ] = 64000000
    segment_age: Annotated[
        Seconds, about("Age of the oldest unsealed message at which a stream is sealed although it is smaller.", gt=0)
    ] = 600.0
    merge_below: Annotated[
        Annotated[Size, Meta(ge=0)] | None,
        about("Segments with fewer octets of bodies than this are merged with their neighbours; absent: a quarter of"
              " `streams.segment_size`."),
    ] = None
    grace: Annotated[
        Seconds,
        about("Time that a file stays when its segment has been retained long enough, merged or rewritten.", ge=0),
    ] = 60.0
    iceberg: Annotated[
        bool, about("Whether each stream is also an Iceberg table over its segments. Needs the extra `iceberg`.")
    ] = False
    iceberg_properties_file: Annotated[
        FilePath | None,
        about(
            "File in TOML, or JSON where it is called so, with the properties of the catalog, as pyiceberg has them: "
            "`type`, `uri`, `warehouse`, credentials. Absent: SQLite in the data directory."
        ),
    ] = None
    iceberg_delay: Annotated[
        Seconds, about("Time after which the Iceberg table of a stream follows a change of its segments.", ge=0)
    ] = 5.0


class StagesConfig(Section, frozen=True, kw_only=True):
    """What sinks publish in stages, to be promoted batch by batch."""

    size: Annotated[Size, about("Octets of bodies that one stage may hold.", ge=1)] = 17179869184
    count: Annotated[int, about("Stages of one vhost.", ge=1)] = 10_000
    apps: Annotated[
        int, about("Sinks of one vhost whose last batch is known; none is forgotten but by `leveret stages forget`.", ge=1)
    ] = 10_000
    timeout: Annotated[
        Seconds,
        about("Time after which a stage is given up that nobody publishes to, seals or promotes; 0: never.", ge=0),
    ] = 86400.0


class StagingConfig(Section, frozen=True, kw_only=True):
    """Contents that clients of AMQP 0-9 stage: uploads that go on after a lost connection."""

    max_per_user: Annotated[int, about("Contents that one user may have staged in one vhost.", ge=1)] = 1000
    max_octets: Annotated[Size, about("Octets that one staged content may have.", ge=1)] = 17179869184
    timeout: Annotated[
        Seconds,
        about("Time after which a staged content is given up whose sender does not come back for it; 0: never.", ge=0),
    ] = 86400.0


class DtxConfig(Section, frozen=True, kw_only=True):
    """Branches of distributed transactions."""

    timeout: Annotated[
        Seconds,
        about("Time after which a branch is rolled back that is not prepared, unless its coordinator sets another one; "
              "0: never. A prepared branch waits for its coordinator, or for `leveret dtx`.", ge=0),
    ] = 300.0
    count: Annotated[int, about("Branches of one vhost.", ge=1)] = 10_000
    size: Annotated[
        Size, about("Octets that the publishes in all branches of one vhost may hold, which are in memory.", ge=1)
    ] = 1073741824


class AuthConfig(Section, frozen=True, kw_only=True):
    """How clients say who they are."""

    mechanisms: Annotated[
        list[Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"]],
        about(
            "SASL mechanisms that are offered, best first. EXTERNAL is offered where the client showed a verified "
            "certificate only, and SCRAM beside PLAIN and AMQPLAIN where every user with a password can use it."
        ),
    ] = field(default_factory=lambda: ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "AMQPLAIN"])
    loopback_users: Annotated[list[Name], about("Users that may connect from the same machine only.")] = field(
        default_factory=lambda: ["guest"]
    )
    anonymous_user: Annotated[Name | None, about("User that clients of ANONYMOUS act as.")] = None
    external_name: Annotated[
        Literal["common-name", "subject"],
        about("What in a client certificate is the user's name: its common name, or its subject as in RFC 4514."),
    ] = "common-name"


class PermissionConfig(Section, frozen=True, kw_only=True):
    """Regular expressions over the names of a vhost's exchanges and queues; see `security.md`."""

    configure: Annotated[str, about("Names that may be declared and deleted.")] = ""
    write: Annotated[str, about("Names that may be published to, and be bound as destination.")] = ""
    read: Annotated[str, about("Names that may be consumed, got, purged, and be bound as source.")] = ""


class UserLimitsConfig(Section, frozen=True, kw_only=True):
    """Limits of one user; 0 means none."""

    max_connections: Annotated[
        int, about("Connections of the user; 0: as `limits.connections_per_user` says.", ge=0)
    ] = 0
    max_channels: Annotated[int, about("Channels of the user, over all its connections; 0: any.", ge=0)] = 0


class UserConfig(Section, frozen=True, kw_only=True):
    """A user, with one of the three forms of a password, or with none: for EXTERNAL and ANONYMOUS."""

    password: Annotated[str | None, about("The password in clear.")] = None
    password_hash: Annotated[str | None, about("Its argon2id hash, as `leveret users hash` prints it.")] = None
    password_file: Annotated[FilePath | None, about("File whose first line is the password.")] = None
    tags: Annotated[list[Name], about("Labels; `administrator` may manage the broker.")] = field(default_factory=list)
    permissions: Annotated[
        dict[str, PermissionConfig], about("What the user may do, by vhost; nothing in one that is not named.")
    ] = field(default_factory=dict)
    limits: Annotated[UserLimitsConfig, about("Limits of the user.")] = field(default_factory=UserLimitsConfig)


class CompatConfig(Section, frozen=True, kw_only=True):
    """Whether the specification or RabbitMQ is followed where they differ."""

    strict: Annotated[
        bool, about("Follow the text of the specification also where clients rely on RabbitMQ's deviation from it.")
    ] = False


class VhostLimitsConfig(Section, frozen=True, kw_only=True):
    """Limits of one vhost; 0 means none."""

    max_queues: Annotated[int, about("Queues; 0: as `limits.queues_per_vhost` says.", ge=0)] = 0
    max_connections: Annotated[int, about("Connections; 0: any.", ge=0)] = 0


class RealmConfig(Section, frozen=True, kw_only=True):
    """A realm of AMQP 0-9: resources, and the users who may have tickets onto them. `*` stands for all users."""

    resources: Annotated[
        str, about("Regular expression over the whole names of its exchanges and queues; the default exchange has none.")
    ] = ".*"
    exclusive: Annotated[list[Name], about("Users who may have the realm for one channel alone.")] = field(
        default_factory=list)
    passive: Annotated[list[Name], about("Users who may ask what there is.")] = field(default_factory=list)
    active: Annotated[list[Name], about("Users who may declare, bind and delete.")] = field(default_factory=list)
    write: Annotated[list[Name], about("Users who may publish.")] = field(default_factory=list)
    read: Annotated[list[Name], about("Users who may consume, get and purge.")] = field(default_factory=list)


class VhostConfig(Section, frozen=True, kw_only=True):
    """A vhost. `/` exists always."""

    compat: Annotated[CompatConfig, about("Compatibility.")] = field(default_factory=CompatConfig)
    qos_global: Annotated[QosGlobal | None, about("Absent: as `amqp.qos_global` says.")] = None
    limits: Annotated[VhostLimitsConfig, about("Limits of the vhost.")] = field(default_factory=VhostLimitsConfig)
    realms: Annotated[
        dict[str, RealmConfig],
        about("Realms of AMQP 0-9. Where there are any, its methods need a ticket; permissions hold besides."),
    ] = field(default_factory=dict)
    consumer_timeout: Annotated[
        Seconds,
        about("Time within which a consumer must acknowledge a delivery, or its channel is closed; 0: any.", ge=0),
    ] = 0.0


class BrokerConfig(Section, frozen=True, kw_only=True):
    """The Python process that `leveret serve` is; nothing to change for most."""

    switch_interval: Annotated[
        Seconds,
        about("Python's thread switch interval. A longer one makes commits wait while the event loop is busy.", gt=0),
    ] = 0.0005
    gc_threshold: Annotated[
        int, about("Allocations between two collections of the garbage collector's youngest generation.", ge=1)
    ] = 10000


class EventsConfig(Section, frozen=True, kw_only=True):
    """What the exchange `amq.leveret.events` tells."""

    sample: Annotated[
        int, about("Of so many events of one kind and queue (or exchange) one is made, which says that it stands for them.",
                   ge=1)
    ] = 1


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration; `Config()` is the default one."""

    server: ServerConfig = field(default_factory=ServerConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    amqp: AmqpConfig = field(default_factory=AmqpConfig)
    amqp09: Amqp09Config = field(default_factory=Amqp09Config)
    amqp10: Amqp10Config = field(default_factory=Amqp10Config)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    stages: StagesConfig = field(default_factory=StagesConfig)
    staging: StagingConfig = field(default_factory=StagingConfig)
    dtx: DtxConfig = field(default_factory=DtxConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    users: dict[str, UserConfig] = field(default_factory=dict)
    vhosts: dict[str, VhostConfig] = field(default_factory=dict)
    events: EventsConfig = field(default_factory=EventsConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
