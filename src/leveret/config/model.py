"""The settings, with their types, ranges, defaults and descriptions.

Sizes and durations are numbers, or strings with a unit ("128MiB", "30s"). Paths in a file are relative to that file. `kind`
selects the reader in `values`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Size = Annotated[int, Meta(extra={"kind": "size"})]
Watermark = Annotated[float, Meta(extra={"kind": "watermark"})]
Seconds = Annotated[float, Meta(extra={"kind": "seconds"})]
FilePath = Annotated[str, Meta(extra={"kind": "path"})]
HttpUrl = Annotated[str, Meta(extra={"kind": "http_url"})]
PathOrUrl = Annotated[str, Meta(extra={"kind": "path_or_url"})]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
# A number of processes; "auto" becomes the number of usable cores.
ShardCount = Annotated[int, Meta(extra={"kind": "shards"})]
Uris = Annotated[list[str], Meta(extra={"kind": "uris"})]
# A table with any keys.
FreeTable = Annotated[dict[str, Any], Meta(extra={"kind": "table"})]
ShovelProtocol = Literal["amqp091", "amqp10"]
QosGlobal = Literal["rabbitmq", "spec"]
# Names from the registries of other packages, which are passed to the loader as `Choices`.
Mechanism = Annotated[str, Meta(extra={"choice": "mechanism"})]
QueueType = Annotated[str, Meta(extra={"choice": "queue_type"})]
Engine = Annotated[str, Meta(extra={"choice": "engine"})]


def about(description: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Meta:
    """Return the description and bounds of a setting."""
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
            "Follow the specifications to the letter even if clients rely on a deviation, in everything that does not "
            "depend on a vhost: framing, and everything before `connection.open` succeeds. For the rest, see "
            "`vhosts.VHOST.compat.strict`."
        ),
    ] = False


class ServerConfig(Section, frozen=True, kw_only=True):
    """The process and its plain listener."""

    host: Annotated[
        str,
        about(
            "Address to listen on. `localhost` means both loopback addresses, an empty string all addresses of the machine."
        ),
    ] = "localhost"
    port: Annotated[int, about("Port of the plain listener; 0 picks a free one.", ge=0, le=65535)] = 5672
    plain: Annotated[
        bool,
        about(
            "Whether to open a plain listener, which also speaks TLS if `tls.cert` is set. If false, the broker "
            "serves only TLS."
        ),
    ] = True
    data_dir: Annotated[
        FilePath, about("Directory for messages, metadata and the control socket. Created if it does not exist.")
    ] = "~/.local/share/leveret"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about("Minimum severity of messages to log, on stderr.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], about("[Log](logging.md) each event as one line of text, or as one JSON object per line.")
    ] = "text"
    handshake_timeout: Annotated[
        Seconds, about("Time between accepting a socket and `connection.open`; slower clients are disconnected.", gt=0)
    ] = 10.0
    shutdown_timeout: Annotated[
        Seconds,
        about(
            "Time for the broker to stop after SIGTERM. The last 2 seconds (half of the time, if it is less than 4) "
            "are for the store, the rest for clients to answer `connection.close`. The store always gets 2 seconds. "
            "If it does not finish in time, the process exits with code 1; no confirmed message is lost. The other "
            "processes have the same time. The broker ends at the latest 5 seconds after it.",
            ge=0,
        ),
    ] = 5.0
    slow_turn: Annotated[
        Seconds,
        about(
            "A turn of the event loop that takes longer is logged, with the clients whose input it handled, "
            "and counted in `leveret status`. 0 disables this.",
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
            "Whether to ignore client certificates (`none`), verify them if clients send them (`optional`), or "
            "require them (`required`)."
        ),
    ] = "none"
    min_version: Annotated[Literal["1.2", "1.3"], about("Minimum TLS version.")] = "1.2"


class WebSocketConfig(Section, frozen=True, kw_only=True):
    """The listener for AMQP over WebSocket. Requires the extra `leveret[websocket]`."""

    enabled: Annotated[bool, about("Whether to open a listener for [AMQP over WebSocket](websocket.md).")] = False
    host: Annotated[str | None, about("Address of the listener. Default: `server.host`.")] = None
    port: Annotated[int, about("Port of the listener; 0 picks a free one.", ge=0, le=65535)] = 15678
    plain: Annotated[
        bool | None,
        about(
            "Whether the listener serves clients without TLS (`ws://`). It serves those with TLS (`wss://`) on the same "
            "port if `tls.cert` is set. Default: `server.plain`."
        ),
    ] = None
    path: Annotated[str, about("Path of the WebSocket, as in `ws://HOST:PORT/ws`.")] = "/ws"
    allowed_origins: Annotated[
        list[Name],
        about(
            "Origins of pages that may connect from a browser, such as `https://shop.example.com`; `*` means every origin. "
            "Clients outside of browsers need none."
        ),
    ] = field(default_factory=list)
    trusted_proxies: Annotated[
        list[Name],
        about(
            "Addresses and networks, such as `10.1.0.0/16`, of proxies whose header `X-Forwarded-For` names "
            "[the client](websocket.md#behind-a-proxy). The header of others is ignored."
        ),
    ] = field(default_factory=list)


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
        Size, about("Maximum body size of a message. A larger message closes its channel with 311.", ge=1)
    ] = 134217728
    qos_global: Annotated[
        QosGlobal,
        about(
            "Meaning of `global` in `basic.qos`: RabbitMQ's (false: each new consumer, true: the channel) or the "
            "specification's (false: the channel, true: the connection)."
        ),
    ] = "rabbitmq"


class Amqp09Config(Section, frozen=True, kw_only=True):
    """AMQP 0-9. Settings shared with 0-9-1 are in `amqp`."""

    known_hosts: Annotated[
        list[Name],
        about(
            "Brokers of the cluster, as `host:port`, announced to clients in `connection.open-ok`. Default: the live nodes "
            "of a [cluster](cluster.md#several-shards-and-nodes)."
        ),
    ] = field(default_factory=list)
    redirect: Annotated[
        str,
        about(
            "`host:port` to redirect clients to, unless they set `insist` (`connection.redirect`), or `owner` for the node "
            "that has the vhost; empty to disable."
        ),
    ] = ""
    resume_timeout: Annotated[
        Seconds,
        about(
            "Time for which the channels of a lost connection wait for `channel.resume`, with their unacked "
            "messages. 0 ends them at once.",
            ge=0,
        ),
    ] = 10.0
    resume_channels: Annotated[
        int, about("Maximum number of interrupted channels per user. Another one ends the oldest.", ge=0)
    ] = 100
    stream_backlog: Annotated[
        Size,
        about(
            "Maximum bytes of class `stream` messages per queue. Beyond that, the queue drops messages of this class, "
            "lowest priority first.",
            ge=0,
        ),
    ] = 67108864


class Amqp10Config(Section, frozen=True, kw_only=True):
    """AMQP 1.0. `amqp.max_message_size` limits messages, as in the other protocols."""

    anonymous_user: Annotated[
        str,
        about(
            "User for clients that use SASL ANONYMOUS or no SASL; an empty string refuses such clients. "
            "`auth.loopback_users` applies to this user too."
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
        about("Maximum number of unsettled deliveries per connection. Further deliveries wait for settlements.", ge=64),
    ] = 65_536
    idle_timeout: Annotated[
        Seconds,
        about(
            "Time without a frame after which a client is considered dead. 0 disables this. The broker "
            "announces half of this time to clients.",
            ge=0,
        ),
    ] = 120.0
    link_credit: Annotated[int, about("Link credit that the broker grants to senders.", ge=1, le=65535)] = 1000
    transaction_timeout: Annotated[
        Seconds, about("Time after which a transaction is rolled back. 0 disables this.", ge=0)
    ] = 0.0
    kept_links: Annotated[
        int,
        about(
            "Maximum number of links per user that may outlive their sessions: links with a timeout, "
            "durability, or an expiry policy other than link-detach and session-end.",
            ge=1,
        ),
    ] = 10_000
    product: Annotated[str, about("`product` in the properties of `open`. RabbitMQ's clients require RabbitMQ's name.")] = (
        "RabbitMQ"
    )
    version: Annotated[
        str, about("`version` in the properties of `open`. RabbitMQ's clients use the features of this RabbitMQ version.")
    ] = "4.3.0"


class LimitsConfig(Section, frozen=True, kw_only=True):
    """Limits on the resources of clients. 0 means unlimited."""

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
            "Maximum number of sockets whose clients have not opened a connection. Another one replaces the oldest "
            "socket that has waited for 2.5 seconds. If there is none, it waits.",
            ge=0,
        ),
    ] = 4000
    unauthenticated_per_address: Annotated[
        int, about("The same limit per IPv4 address, and per 64-bit prefix of IPv6 addresses.", ge=0)
    ] = 1000
    connections_per_user: Annotated[int, about("Maximum number of connections per user.", ge=0)] = 0
    consumers_per_channel: Annotated[int, about("Maximum number of consumers per channel.", ge=0)] = 0
    unacked_per_channel: Annotated[
        int,
        about("Maximum number of unacked deliveries per channel, even without a prefetch.", ge=0),
    ] = 1_000_000
    queues_per_vhost: Annotated[int, about("Maximum number of queues per vhost.", ge=0)] = 0
    transaction_size: Annotated[
        Size,
        about("Maximum bytes of uncommitted publishes per transaction; each counts 1,000 bytes more than its body.", ge=1),
    ] = 268435456
    routing_keys: Annotated[
        int,
        about("Maximum number of distinct routing keys per message, including those in its headers CC and BCC.", ge=1),
    ] = 1000
    routing_steps: Annotated[
        int,
        about(
            "Maximum number of comparisons with bindings, destinations and exchanges to route a message. "
            "100,000 comparisons take about 10 ms, during which other clients wait.",
            ge=100,
        ),
    ] = 100000
    routing_queues: Annotated[
        int,
        about(
            "Maximum number of queues that a message may be routed to. 10,000 queues take about 10 ms, during "
            "which other clients wait.",
            ge=1,
        ),
    ] = 10000


class StorageConfig(Section, frozen=True, kw_only=True):
    """Storage of durable messages and definitions."""

    engine: Annotated[
        Engine,
        about(
            "`sqlite` stores durable data in the data directory, `postgresql` in a [PostgreSQL server](cluster.md); "
            "`memory` loses everything on restart."
        ),
    ] = "sqlite"
    dsn: Annotated[
        str | None,
        about(
            "Address of the database for `postgresql`: a URL such as `postgresql://leveret@db.example.com/leveret`, or "
            "keywords of libpq."
        ),
    ] = None
    dsn_file: Annotated[
        FilePath | None,
        about("File with this address in its first line, which keeps a password out of the list of processes."),
    ] = None
    synchronous: Annotated[
        Literal["full", "extra"],
        about("Sync before confirming a commit: the file, or with `extra` also its directory (slower)."),
    ] = "full"
    reserve: Annotated[
        Size,
        about(
            "Disk space reserved for settlements on a full disk. Publishers are blocked when less than this is free.",
            ge=1048576,
        ),
    ] = 16777216
    segments_mode: Annotated[
        Literal["0600", "0640"],
        about(
            "File mode of sealed segments on this machine. `0640` lets the group of their directory read them, "
            "such as Spark's group. Directories get `0700` or `0750`."
        ),
    ] = "0600"
    body_spool_threshold: Annotated[
        Size,
        about(
            "Body size above which the broker receives a body into a file in the data directory, not into memory.", ge=4096
        ),
    ] = 1048576


class ClusterTlsConfig(Section, frozen=True, kw_only=True):
    """TLS between nodes; enabled if `cert` is set. Both ends verify each other's certificate."""

    cert: Annotated[
        FilePath | None,
        about(
            "Certificate chain in PEM, the node's certificate first, for the host of `cluster.advertised` and for use as a "
            "server and as a client. Enables TLS, which all nodes must have then."
        ),
    ] = None
    key: Annotated[FilePath | None, about("Private key in PEM. Default: the key in the file of `cert`.")] = None
    key_password_file: Annotated[FilePath | None, about("File with the password of an encrypted key.")] = None
    ca: Annotated[FilePath | None, about("CA certificates in PEM to verify other nodes. Required with `cert`.")] = None
    min_version: Annotated[Literal["1.2", "1.3"], about("Minimum TLS version.")] = "1.3"


class ClusterConfig(Section, frozen=True, kw_only=True):
    """The processes of the broker, and its log in PostgreSQL, which requires the extra `cluster`."""

    shards: Annotated[
        ShardCount,
        about(
            "Number of [shards](shards.md), processes with vhosts and a log of their own, or `auto`: one for each "
            "usable core, at most 16. With 1, the broker is one process.",
            ge=1,
            le=64,
        ),
    ] = 1
    tls: Annotated[ClusterTlsConfig, about("TLS between nodes.")] = field(default_factory=ClusterTlsConfig)
    name: Annotated[
        Name | None,
        about("Name of this node, unlike those of the others in the database. Default: the name of the machine."),
    ] = None
    host: Annotated[
        str | None, about("Address on which a node with several shards listens for other nodes. Default: `server.host`.")
    ] = None
    port: Annotated[int, about("Port on which it listens for other nodes; 0 picks a free one.", ge=0, le=65535)] = 0
    advertised: Annotated[
        str | None,
        about("`HOST:PORT` that other nodes connect to. Default: the address and port on which this node listens."),
    ] = None
    redirect: Annotated[
        bool,
        about(
            "Whether AMQP 1.0 clients are redirected to the node that has their vhost (`amqp:connection:redirect`), "
            "instead of relaying for them."
        ),
    ] = False
    client_host: Annotated[
        str | None,
        about(
            "Host of this node for clients, which learn it from `known-hosts` of AMQP 0-9 and redirects, with the ports of "
            "the listeners. Default: the host of `cluster.advertised` or `server.host`, or the name of the machine."
        ),
    ] = None
    referral_time: Annotated[
        Seconds,
        about(
            "Time after the drain or stop of another node in which clients of shards of other nodes are refused with the "
            "address of the right node, unless they follow redirects. 0: they are always relayed.",
            ge=0,
        ),
    ] = 0.0
    lease: Annotated[
        Seconds, about("Time without a sign of life after which another broker may take over the log.", ge=0.2)
    ] = 0.6
    start_timeout: Annotated[
        Seconds,
        about(
            "Time for `leveret serve` to start with PostgreSQL. It waits for the server and for a synchronous standby, and "
            "then ends with the reason. 0: it waits for as long as it takes.",
            ge=0,
        ),
    ] = 0.0
    shard_timeout: Annotated[
        Seconds,
        about(
            "Time without an answer after which the process of a shard counts as hung. It is killed and started again. "
            "One that does not serve yet is killed only if it is stopped (SIGSTOP) for this time, or if it uses six times "
            "as much processor time without progress of its recovery. 0: never.",
            ge=0,
        ),
    ] = 10.0
    balance: Annotated[
        Literal["auto", "manual"],
        about("Whether a node with two more shards than another one moves one of them there, until the numbers are equal."),
    ] = "auto"
    unreplicated: Annotated[
        bool, about("Accept a server without a synchronous standby, so that messages are on one disk.")
    ] = False


class StreamsConfig(Section, frozen=True, kw_only=True):
    """Sealing of streams, which writes their oldest parts to Parquet files. Requires the extra `segments`."""

    sealing: Annotated[bool, about("Whether to seal streams. Existing segments are served in either case.")] = True
    directory: Annotated[
        PathOrUrl | None,
        about(
            "Directory of the segments, or a URL of any file system that fsspec supports, such as "
            "`s3://bucket/streams`. Default: `streams` in the data directory."
        ),
    ] = None
    shared: Annotated[
        bool,
        about(
            "Whether `streams.directory` is a path that all nodes share, such as one on NFS. With messages in PostgreSQL, "
            "streams are sealed only to such a directory, or to a URL."
        ),
    ] = False
    storage_options_file: Annotated[
        FilePath | None,
        about(
            "TOML file (JSON if its name ends with `.json`) with options for the file system of the URL, such as "
            "credentials. Default: options from the environment."
        ),
    ] = None
    segment_size: Annotated[Size, about("Bytes of unsealed bodies at which a segment is sealed.", ge=1)] = 64000000
    segment_age: Annotated[
        Seconds, about("Age of the oldest unsealed message at which a smaller segment is sealed.", gt=0)
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
        about("Time for which a file is kept after its segment is removed by retention, merged or rewritten.", ge=0),
    ] = 60.0
    iceberg: Annotated[
        bool, about("Whether each stream is also an Iceberg table over its segments. Requires the extra `iceberg`.")
    ] = False
    iceberg_properties_file: Annotated[
        FilePath | None,
        about(
            "TOML file (JSON if its name ends with `.json`) with the catalog's properties, as in pyiceberg: `type`, "
            "`uri`, `warehouse`, credentials. Default: SQLite in the data directory."
        ),
    ] = None
    iceberg_delay: Annotated[
        Seconds, about("Delay between a change of a stream's segments and the update of its Iceberg table.", ge=0)
    ] = 5.0


class SinkTransactionsConfig(Section, frozen=True, kw_only=True):
    """Sink transactions, which are batches that a sink publishes atomically."""

    max_bytes: Annotated[Size, about("Maximum bytes of bodies per sink transaction.", ge=1)] = 17179869184
    max_per_vhost: Annotated[int, about("Maximum number of sink transactions per vhost.", ge=1)] = 10_000
    max_apps: Annotated[
        int,
        about(
            "Maximum number of sinks per vhost whose last batch is stored. Only `leveret sink-transactions "
            "forget` removes a sink.",
            ge=1,
        ),
    ] = 10_000
    timeout: Annotated[
        Seconds,
        about("Time without publish, prepare or commit after which a sink transaction is aborted. 0 disables this.", ge=0),
    ] = 86400.0


class UploadsConfig(Section, frozen=True, kw_only=True):
    """Resumable uploads of AMQP 0-9 clients (staged content)."""

    directory: Annotated[
        FilePath | None,
        about(
            "Directory of the uploads, which all nodes share, such as one on NFS. Only for messages in PostgreSQL: "
            "another node that takes over a shard finds its uploads there. Default: `staged` in the data directory."
        ),
    ] = None
    max_per_user: Annotated[int, about("Maximum number of uploads per user and vhost.", ge=1)] = 1000
    max_bytes: Annotated[Size, about("Maximum bytes of an upload.", ge=1)] = 17179869184
    timeout: Annotated[
        Seconds,
        about("Time after which an upload is discarded unless its sender resumes it. 0 disables this.", ge=0),
    ] = 86400.0


class DtxConfig(Section, frozen=True, kw_only=True):
    """Branches of distributed transactions."""

    timeout: Annotated[
        Seconds,
        about(
            "Time after which an unprepared branch is rolled back, unless its coordinator sets another timeout. "
            "0 disables this. A prepared branch waits for its coordinator, or for `leveret dtx`.",
            ge=0,
        ),
    ] = 300.0
    max_branches: Annotated[int, about("Maximum number of branches per vhost.", ge=1)] = 10_000
    max_bytes: Annotated[
        Size, about("Maximum bytes of publishes in all branches of a vhost. They are held in memory.", ge=1)
    ] = 1073741824


class OAuthScopeAliasConfig(Section, frozen=True, kw_only=True):
    """Scopes that a scope of the provider stands for."""

    scopes: Annotated[list[Name], about("Scopes, with their prefix, that are used instead of the alias.")] = field(
        default_factory=list
    )


class OAuthProviderConfig(Section, frozen=True, kw_only=True):
    """One more provider whose tokens are accepted. `issuer` is required; it chooses the provider of a token."""

    resource_server_id: Annotated[
        str,
        about("Name of this broker at the provider, the prefix of its scopes. Default: `auth.oauth.resource_server_id`."),
    ] = ""
    issuer: Annotated[
        str,
        about(
            "Issuer of the tokens (`iss`). Its discovery document names the keys, unless `jwks_uri` or `key_file` is set."
        ),
    ] = ""
    audience: Annotated[str, about("Audience that tokens must have (`aud`). Default: `resource_server_id`.")] = ""
    algorithms: Annotated[
        list[Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"]],
        about("Accepted signature algorithms."),
    ] = field(default_factory=lambda: ["RS256"])
    jwks_uri: Annotated[str, about("Address of the provider's JSON Web Key Set.")] = ""
    jwks_lifetime: Annotated[
        Seconds,
        about("Time after which the keys are fetched again. A token with an unknown key also causes a fetch.", gt=0),
    ] = 3600.0
    key_file: Annotated[
        FilePath | None, about("File with public keys, as JSON Web Key Set or PEM, instead of the provider's keys.")
    ] = None
    ca: Annotated[
        FilePath | None, about("CA certificates in PEM to verify the provider. Default: those of the system.")
    ] = None
    clock_skew: Annotated[
        Seconds, about("Time by which the clocks of the provider and the broker may differ.", ge=0, le=300)
    ] = 10.0
    username_claims: Annotated[
        list[Name], about("Claims that may have the user's name. The first one in the token is used.")
    ] = field(default_factory=lambda: ["sub", "client_id"])
    scope_prefix: Annotated[
        str | None, about("Prefix of the broker's scopes; others are ignored. Default: `resource_server_id` and a dot.")
    ] = None
    additional_scopes_key: Annotated[
        list[Name], about("More claims with scopes. Dots separate the keys of nested objects, as in `realm_access.roles`.")
    ] = field(default_factory=list)
    scope_aliases: Annotated[
        dict[str, OAuthScopeAliasConfig], about("Scopes of the broker by a scope of the provider that stands for them.")
    ] = field(default_factory=dict)


class OAuthConfig(OAuthProviderConfig, frozen=True, kw_only=True):
    """Logins by OAuth 2 access token. Requires the extra `leveret[oauth]`; enabled if `resource_server_id` is set."""

    resource_server_id: Annotated[
        str, about("Name of this broker at the provider, the prefix of its scopes. Enables logins by token.")
    ] = ""
    providers: Annotated[dict[str, OAuthProviderConfig], about("More providers, by a name of your choice.")] = field(
        default_factory=dict
    )


class AuthConfig(Section, frozen=True, kw_only=True):
    """Authentication of clients."""

    mechanisms: Annotated[
        list[Mechanism],
        about(
            "SASL mechanisms to offer, in order of preference. EXTERNAL is offered only to clients with a verified "
            "certificate. If PLAIN or AMQPLAIN is offered, SCRAM is offered only if every user with a password can use it."
        ),
    ] = field(default_factory=lambda: ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "AMQPLAIN"])
    loopback_users: Annotated[list[Name], about("Users that may connect only from the same machine.")] = field(
        default_factory=lambda: ["guest"]
    )
    anonymous_user: Annotated[Name | None, about("User for clients that use ANONYMOUS.")] = None
    rehash: Annotated[
        bool, about("Replace password hashes in RabbitMQ's format by Argon2id hashes at the first login by PLAIN.")
    ] = True
    external_name: Annotated[
        Literal["common-name", "subject"],
        about("Part of a client certificate to use as the user name: its common name, or its subject as in RFC 4514."),
    ] = "common-name"
    oauth: Annotated[OAuthConfig, about("Logins by OAuth 2 access token.")] = field(default_factory=OAuthConfig)


class PermissionConfig(Section, frozen=True, kw_only=True):
    """Regular expressions for the names of a vhost's exchanges and queues; see `security.md`."""

    configure: Annotated[str, about("Names that the user may declare and delete.")] = ""
    write: Annotated[str, about("Names that the user may publish to, or bind as a destination.")] = ""
    read: Annotated[str, about("Names that the user may consume, get and purge, or bind as a source.")] = ""


class UserLimitsConfig(Section, frozen=True, kw_only=True):
    """Limits of one user."""

    max_connections: Annotated[
        int,
        about("Maximum number of connections of the user; 0 applies `limits.connections_per_user`, -1 allows none.", ge=-1),
    ] = 0
    max_channels: Annotated[
        int,
        about("Maximum number of channels in all connections of the user; 0 is unlimited, -1 allows none.", ge=-1),
    ] = 0


class UserConfig(Section, frozen=True, kw_only=True):
    """A user, with at most one of the three forms of a password. EXTERNAL and ANONYMOUS need none."""

    password: Annotated[str | None, about("Password in plain text.")] = None
    password_hash: Annotated[str | None, about("Argon2id hash of the password, as printed by `leveret users hash`.")] = None
    password_file: Annotated[FilePath | None, about("File whose first line is the password.")] = None
    tags: Annotated[list[Name], about("Labels; some grant [roles in management](security.md#tags).")] = field(
        default_factory=list
    )
    permissions: Annotated[
        dict[str, PermissionConfig], about("Permissions of the user by vhost. The user has no permissions in other vhosts.")
    ] = field(default_factory=dict)
    limits: Annotated[UserLimitsConfig, about("Limits of the user.")] = field(default_factory=UserLimitsConfig)


class CompatConfig(Section, frozen=True, kw_only=True):
    """Whether to follow the specification or RabbitMQ when they differ."""

    strict: Annotated[
        bool, about("Follow the specification to the letter even if clients rely on RabbitMQ's deviation.")
    ] = False


class VhostLimitsConfig(Section, frozen=True, kw_only=True):
    """Limits of one vhost."""

    max_queues: Annotated[
        int, about("Maximum number of queues; 0 applies `limits.queues_per_vhost`, -1 allows none.", ge=-1)
    ] = 0
    max_connections: Annotated[int, about("Maximum number of connections; 0 is unlimited, -1 allows none.", ge=-1)] = 0


class RealmConfig(Section, frozen=True, kw_only=True):
    """An AMQP 0-9 realm: resources, and the users who may request tickets for them. `*` means all users."""

    resources: Annotated[
        str,
        about(
            "Regular expression that matches the full names of the realm's exchanges and queues. The default "
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

    description: Annotated[str, about("Description for operators.")] = ""
    tags: Annotated[list[Name], about("Labels for operators.")] = field(default_factory=list)
    default_queue_type: Annotated[
        QueueType,
        about(
            "Type of queues that are declared without `x-queue-type`. Queues with properties that the type does not allow, "
            "such as exclusive ones, stay classic."
        ),
    ] = "classic"
    protected_from_deletion: Annotated[bool, about("Refuse to delete the vhost.")] = False
    compat: Annotated[CompatConfig, about("Compatibility.")] = field(default_factory=CompatConfig)
    qos_global: Annotated[QosGlobal | None, about("Default: `amqp.qos_global`.")] = None
    limits: Annotated[VhostLimitsConfig, about("Limits of the vhost.")] = field(default_factory=VhostLimitsConfig)
    realms: Annotated[
        dict[str, RealmConfig],
        about("AMQP 0-9 realms. If there are any, 0-9 methods require a ticket; permissions apply in addition."),
    ] = field(default_factory=dict)
    consumer_timeout: Annotated[
        Seconds,
        about("Time within which a consumer must settle a delivery, or its channel is closed. 0 is unlimited.", ge=0),
    ] = 0.0


class ShovelConfig(Section, frozen=True, kw_only=True):
    """A static shovel, with the keys of a dynamic one."""

    vhost: Annotated[Name, about("Vhost whose process runs the shovel.")] = "/"
    user: Annotated[
        str,
        about(
            "User with whose permissions the shovel acts at URIs without a host and without a user. Default: it may do "
            "everything."
        ),
    ] = ""
    src_uri: Annotated[Uris | None, about("URIs of the source, to try in order. Without a host, it is this broker.")] = None
    src_protocol: Annotated[ShovelProtocol | None, about("Protocol of the source. Default: `amqp091`.")] = None
    src_queue: Annotated[str | None, about("Queue to consume.")] = None
    src_queue_args: Annotated[FreeTable | None, about("Arguments of the declaration of the queue.")] = None
    src_predeclared: Annotated[bool | None, about("Wait until the queue exists, instead of declaring it.")] = None
    src_exchange: Annotated[str | None, about("Exchange to bind an exclusive queue to, instead of `src_queue`.")] = None
    src_exchange_key: Annotated[str | None, about("Binding key.")] = None
    src_address: Annotated[str | None, about("Address over AMQP 1.0.")] = None
    src_prefetch_count: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None, about("Maximum number of unacked messages. Default: 1000.")
    ] = None
    src_consumer_args: Annotated[FreeTable | None, about("Arguments of the consumer.")] = None
    dest_uri: Annotated[Uris | None, about("URIs of the destination, to try in order.")] = None
    dest_protocol: Annotated[ShovelProtocol | None, about("Protocol of the destination. Default: `amqp091`.")] = None
    dest_queue: Annotated[str | None, about("Queue to publish to.")] = None
    dest_queue_args: Annotated[FreeTable | None, about("Arguments of the declaration of the queue.")] = None
    dest_predeclared: Annotated[bool | None, about("Wait until the queue exists, instead of declaring it.")] = None
    dest_exchange: Annotated[str | None, about("Exchange to publish to. Default: that of the message.")] = None
    dest_exchange_key: Annotated[str | None, about("Routing key. Default: that of the message.")] = None
    dest_address: Annotated[str | None, about("Address over AMQP 1.0.")] = None
    dest_application_properties: Annotated[
        FreeTable | None, about("AMQP 1.0: application properties that replace those of messages.")
    ] = None
    dest_message_annotations: Annotated[
        FreeTable | None, about("AMQP 1.0: message annotations that replace those of messages.")
    ] = None
    dest_properties: Annotated[FreeTable | None, about("AMQP 1.0: properties that replace those of messages.")] = None
    dest_publish_properties: Annotated[FreeTable | None, about("Properties that replace those of messages.")] = None
    dest_add_forward_headers: Annotated[bool | None, about("Describe the shovel in the header `x-shovelled`.")] = None
    dest_add_timestamp_header: Annotated[bool | None, about("Add the header `x-shovelled-timestamp`.")] = None
    dest_add_origin_headers: Annotated[
        bool | None, about("Add the headers `x-shovelled-exchange` and `x-shovelled-routing-key`.")
    ] = None
    ack_mode: Annotated[
        Literal["on-confirm", "on-publish", "no-ack"] | None,
        about("When messages are [acknowledged](shovel.md#guarantees) at the source. Default: `on-confirm`."),
    ] = None
    reconnect_delay: Annotated[
        Annotated[Seconds, Meta(ge=0)] | None,
        about("Time before the shovel starts again after a failure, at least 1. 0: it does not. Default: 5."),
    ] = None


class BrokerConfig(Section, frozen=True, kw_only=True):
    """The Python process of `leveret serve`. The defaults suit most brokers."""

    switch_interval: Annotated[
        Seconds,
        about("Python's thread switch interval. A longer interval delays commits while the event loop is busy.", gt=0),
    ] = 0.0005
    gc_threshold: Annotated[int, about("Allocations between two garbage collections of the youngest generation.", ge=1)] = (
        10000
    )


class EventsConfig(Section, frozen=True, kw_only=True):
    """Events on the exchange `amq.leveret.events`."""

    sample: Annotated[
        int,
        about(
            "Publish one in this many events of the same kind and queue (or exchange). The field `sample` has this number.",
            ge=1,
        ),
    ] = 1


class ConsoleProviderConfig(Section, frozen=True, kw_only=True):
    """One more provider on the sign-in page of the console. `NAME` is that of `auth.oauth.providers.NAME`."""

    client_id: Annotated[str, about("Client id of the console at the provider; required.")] = ""
    label: Annotated[str, about("What the button says after 'Sign in with'. Default: the name.")] = ""
    scopes: Annotated[list[Name], about("Scopes that the console asks for.")] = field(default_factory=lambda: ["openid"])
    origins: Annotated[
        list[Name],
        about(
            "Origins that the console sends requests to for the sign-in. Default: the origin of the provider's `issuer`."
        ),
    ] = field(default_factory=list)


class MailConfig(Section, frozen=True, kw_only=True):
    """Mails of [alerts](http-api.md#alerts), by SMTP."""

    host: Annotated[str, about("Mail server; empty for no mails.")] = ""
    port: Annotated[int, about("Port of the mail server.", ge=1, le=65535)] = 587
    security: Annotated[
        Literal["starttls", "tls", "none"],
        about(
            "`starttls` requires TLS after a plain greeting (port 587), `tls` speaks it from the start (port 465), `none` "
            "sends mails in plain text."
        ),
    ] = "starttls"
    ca: Annotated[
        FilePath | None, about("CA certificates in PEM to verify the mail server. Default: those of the system.")
    ] = None
    user: Annotated[str, about("User name at the mail server; empty for no login.")] = ""
    password_file: Annotated[
        FilePath | None, about("File whose first line is the password of `user`. It is read for each mail.")
    ] = None
    sender: Annotated[str, about("Address that mails come from. Required with `host`.")] = ""
    recipients: Annotated[
        list[str],
        about(
            "Addresses that rules may send alerts to, or their domains: `ops@example.com` or `example.com`. The broker "
            "sends mails to no other ones. Users with the tag `policymaker` see them."
        ),
    ] = field(default_factory=list)
    timeout: Annotated[Seconds, about("Time for the mail server to accept a mail.", gt=0, le=600)] = 30.0
    interval: Annotated[Seconds, about("Time between two mails to an address. Alerts of this time are one mail.", ge=0)] = (
        60.0
    )


class WebhookConfig(Section, frozen=True, kw_only=True):
    """A URL that rules of [alerts](http-api.md#webhooks) may send alerts to. `url` is required."""

    url: Annotated[str, about("The URL. Users with the tag `policymaker` see it.")] = ""
    ca: Annotated[
        FilePath | None, about("CA certificates in PEM to verify the receiver. Default: those of the system.")
    ] = None
    headers_file: Annotated[
        FilePath | None,
        about(
            "File with headers of the requests, one `NAME: VALUE` per line, such as a token. It is read for each request. "
            "Requires `https`, or a receiver on this machine."
        ),
    ] = None
    networks: Annotated[
        list[str],
        about("Networks, such as `10.1.0.0/16`, that the receiver's addresses must be in. Default: any address."),
    ] = field(default_factory=list)


class ManagementConfig(Section, frozen=True, kw_only=True):
    """The HTTP API, which `leveret serve` runs in a process of its own. Requires the extra `leveret[management]`.

    `load_definitions` works without the extra.
    """

    enabled: Annotated[bool, about("Whether to serve the HTTP API if the extra `leveret[management]` is installed.")] = True
    host: Annotated[
        str,
        about(
            "Address to listen on. `localhost` means both loopback addresses, an empty string all addresses of the machine."
        ),
    ] = "localhost"
    port: Annotated[int, about("Port of the HTTP API; 0 picks a free one.", ge=0, le=65535)] = 15672
    metrics_enabled: Annotated[bool, about("Whether to serve [metrics](metrics.md) for Prometheus.")] = True
    metrics_port: Annotated[
        int, about("Port of the metrics, which need no password; 0 picks a free one.", ge=0, le=65535)
    ] = 15692
    tls_cert: Annotated[
        FilePath | None, about("Certificate chain in PEM, the server's certificate first. Enables HTTPS.")
    ] = None
    tls_key: Annotated[FilePath | None, about("Private key in PEM. Default: the key in the file of `tls_cert`.")] = None
    path_prefix: Annotated[str, about("Prefix of all paths, such as `/broker`.")] = ""
    hosts: Annotated[
        list[Name],
        about(
            "Names by which clients reach the API and the metrics, without ports, such as broker.example.com; `*` means "
            "[every name](http-api.md#host-names). Loopback names, IP addresses, the name of the machine, and the names in "
            "`management.host`, `cluster.client_host` and `cluster.advertised` need not be listed."
        ),
    ] = field(default_factory=list)
    cors_origins: Annotated[
        list[Name], about("Origins of pages that may use the API from a browser; `*` means every origin.")
    ] = field(default_factory=list)
    basic_auth: Annotated[
        bool, about("Whether users may log in with passwords, by Basic authentication or the sign-in form.")
    ] = True
    refused_logins: Annotated[
        int,
        about(
            "Maximum number of refused logins per minute and address over HTTP; further ones are answered with 429. 0 is "
            "unlimited. Sessions, and passwords that were right before, are not affected.",
            ge=0,
        ),
    ] = 30
    session_timeout: Annotated[Seconds, about("Time after which a user must sign in again to the console.", gt=0)] = 43200.0
    session_idle_timeout: Annotated[
        Seconds, about("Time without a request after which a user must sign in again to the console.", gt=0)
    ] = 1800.0
    oauth_client_id: Annotated[
        str,
        about("Client id of the console at the provider of `auth.oauth.issuer`; enables sign-in there, with PKCE."),
    ] = ""
    oauth_scopes: Annotated[list[Name], about("Scopes that the console asks for.")] = field(
        default_factory=lambda: ["openid"]
    )
    oauth_origins: Annotated[
        list[Name],
        about("Origins that the console sends requests to for the sign-in. Default: the origin of `auth.oauth.issuer`."),
    ] = field(default_factory=list)
    oauth_label: Annotated[
        Name, about("What the button for this provider says after 'Sign in with', on the sign-in page.")
    ] = "your organisation"
    oauth_providers: Annotated[
        dict[str, ConsoleProviderConfig],
        about("More [providers](oauth.md#several-providers) on the sign-in page, by their name in `auth.oauth.providers`."),
    ] = field(default_factory=dict)
    mask: Annotated[
        list[Name],
        about(
            "Fields of messages to [hide](roles.md#masks): a property such as `user_id`, `headers.NAME`, `body`, or "
            "`body.PATH` for a value in JSON bodies."
        ),
    ] = field(default_factory=list)
    mask_exempt_tags: Annotated[
        list[Name], about("Tags of users from whom the fields of `mask` are not hidden; any tags.")
    ] = field(default_factory=lambda: ["administrator"])
    alert_webhooks: Annotated[
        list[str],
        about(
            "URLs that the rules of [alerts](http-api.md#alerts) may send alerts to. The broker calls no other ones. Users "
            "with the tag `policymaker` see them."
        ),
    ] = field(default_factory=list)
    webhooks: Annotated[
        dict[str, WebhookConfig], about("More such URLs, by a name of your choice, with settings of their own.")
    ] = field(default_factory=dict)
    mail: Annotated[MailConfig, about("Mails of alerts.")] = field(default_factory=MailConfig)
    shovel_networks: Annotated[
        list[str],
        about(
            "Networks, such as `10.1.0.0/16`, to which [shovels](shovel.md#destinations) of users without the tag "
            "`administrator` may connect. Default: every address except those of this machine, of its link, of groups, and "
            "of the metadata services of clouds."
        ),
    ] = field(default_factory=list)
    rabbitmq_version: Annotated[
        Name, about("RabbitMQ version to report to clients, which choose their requests by it.")
    ] = "4.1.0"
    max_body_size: Annotated[Size, about("Maximum size of a request body in bytes.", ge=1)] = 20000000
    audit: Annotated[bool, about("Whether to keep an [audit log](http-api.md#audit-log) of administrative changes.")] = True
    audit_max_size: Annotated[
        Size, about("Maximum size of the audit log in bytes. The oldest changes are deleted beyond it.", ge=65536)
    ] = 67108864
    audit_max_age: Annotated[
        Seconds, about("Time after which changes are deleted from the audit log. 0 keeps them.", ge=0)
    ] = 31536000.0
    load_definitions: Annotated[
        FilePath | None,
        about("File with [definitions](definitions.md) to import at the start, before clients can connect."),
    ] = None


class TelemetryConfig(Section, frozen=True, kw_only=True):
    """Traces and metrics for OpenTelemetry, which `leveret serve` exports from a process of its own.

    Requires the extra `leveret[otel]`. See [tracing](tracing.md).
    """

    otlp_endpoint: Annotated[
        HttpUrl | None,
        about(
            "Base URL of a collector that accepts OTLP over HTTP, such as `http://localhost:4318`. Default: no telemetry. "
            "The variables `OTEL_EXPORTER_OTLP_*` of the environment set headers, certificates and compression."
        ),
    ] = None
    traces: Annotated[
        bool, about("Whether to export spans for messages that carry a sampled `traceparent`. Costs time per message.")
    ] = True
    sample: Annotated[
        float,
        about(
            "Share of all traces, by trace id, for which to export spans. Traces that their publishers have not sampled "
            "have none.",
            ge=0,
            le=1,
        ),
    ] = 1.0
    metrics: Annotated[bool, about("Whether to export metrics of the broker and its vhosts.")] = True
    metrics_interval: Annotated[Seconds, about("Time between two exports of metrics.", ge=1)] = 30.0
    queue_metrics: Annotated[
        bool, about("Whether to export metrics of each queue, too, and of exchanges with deduplication.")
    ] = False
    service_name: Annotated[Name, about("`service.name` of spans and metrics.")] = "leveret"


class Config(Section, frozen=True, kw_only=True):
    """The configuration. `Config()` contains the defaults."""

    server: ServerConfig = field(default_factory=ServerConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    websocket: WebSocketConfig = field(default_factory=WebSocketConfig)
    amqp: AmqpConfig = field(default_factory=AmqpConfig)
    amqp09: Amqp09Config = field(default_factory=Amqp09Config)
    amqp10: Amqp10Config = field(default_factory=Amqp10Config)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    sink_transactions: SinkTransactionsConfig = field(default_factory=SinkTransactionsConfig)
    uploads: UploadsConfig = field(default_factory=UploadsConfig)
    dtx: DtxConfig = field(default_factory=DtxConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    users: dict[str, UserConfig] = field(default_factory=dict)
    vhosts: dict[str, VhostConfig] = field(default_factory=dict)
    shovels: dict[str, ShovelConfig] = field(default_factory=dict)
    events: EventsConfig = field(default_factory=EventsConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    management: ManagementConfig = field(default_factory=ManagementConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
