"""Schemas of bodies and answers, from which the OpenAPI document is generated.

Handlers build answers as dictionaries, because most keys come from the broker as they are. A test validates real answers
against these structs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from leveret.management.descriptions import Match

# A statistic `X`, which has its rate and samples in `X_details`.
Rated: TypeAlias = Annotated[int, Meta(extra_json_schema={"x-rated": True})]
RatedTime: TypeAlias = Annotated[float, Meta(extra_json_schema={"x-rated": True})]
Json: TypeAlias = Any
Arguments: TypeAlias = dict[str, Any]


class Answer(Struct, kw_only=True):
    """Base class of objects in answers. An optional key is missing or has a value."""


class Body(Struct, kw_only=True):
    """Base class of bodies of requests. Unknown keys are ignored."""


# Common parts


class Error(Answer):
    """The reason why a request failed."""

    error: str
    reason: Json


class Sample(Answer):
    """The value of a statistic at a time, in milliseconds of Unix time."""

    sample: int
    timestamp: int


class Rate(Answer):
    """The rate of a statistic per second; and its samples, newest first, if the request asks for them."""

    rate: float
    avg: float | UnsetType = UNSET
    avg_rate: float | UnsetType = UNSET
    samples: list[Sample] | UnsetType = UNSET


class GarbageCollection(Answer):
    """Statistics of Erlang's garbage collection, which are always 0."""

    fullsweep_after: int
    max_heap_size: int
    min_bin_vheap_size: int
    min_heap_size: int
    minor_gcs: int


class ChannelStats(Answer):
    """Counts of messages since the object was created."""

    ack: Rated
    confirm: Rated
    deliver: Rated
    deliver_get: Rated
    deliver_no_ack: Rated
    drop_unroutable: Rated
    get: Rated
    get_empty: Rated
    get_no_ack: Rated
    publish: Rated
    redeliver: Rated
    return_unroutable: Rated


class MessageStats(ChannelStats):
    """Counts of messages since the object was created."""

    disk_reads: Rated
    disk_writes: Rated


class ExchangeStats(Answer):
    """Counts of messages that were published to an exchange, and routed by it."""

    publish_in: Rated
    publish_out: Rated


class QueueTotals(Answer):
    """Numbers of messages."""

    messages: Rated
    messages_ready: Rated
    messages_unacknowledged: Rated


class Status(Answer):
    """The result of a check. One that failed has more keys with the reason."""

    status: Literal["ok", "failed"]
    reason: str | UnsetType = UNSET
    port: int | UnsetType = UNSET
    protocol: str | UnsetType = UNSET
    missing: Json | UnsetType = UNSET
    ports: list[int] | UnsetType = UNSET
    protocols: list[str] | UnsetType = UNSET
    alarms: list[dict[str, str]] | UnsetType = UNSET
    connections: int | UnsetType = UNSET
    limit: int | str | UnsetType = UNSET


# Users


class Whoami(Answer):
    """The user of the request."""

    name: str
    tags: list[str]


class Role(Answer):
    """A role for the queues and exchanges whose names match, in the vhosts whose names match."""

    role: str
    vhosts: str
    names: str


class RoleOfUser(Role):
    """A role of a user."""

    user: str


class RoleToGrant(Body):
    """A role to grant. `vhosts` and `names` are regular expressions, by default `.*`."""

    role: str
    vhosts: str | UnsetType = UNSET
    names: str | UnsetType = UNSET


class RolesToSet(Body):
    """All roles of a user."""

    grants: list[RoleToGrant]


class OwnNames(Body):
    """Names of at most 500 queues and exchanges, which need not exist."""

    names: list[str]


class OwnRole(Answer):
    """The highest role of the user for a queue or exchange, and those of `configure`, `write` and `read` that the user has.

    `restricted` is false for a user without roles.
    """

    restricted: bool
    role: str | None
    permissions: list[str]


class SessionUser(Whoami):
    """The user of a session, with the roles, the vhosts that the user may use, and those of which also the policies."""

    grants: list[Role]
    vhosts: list[str]
    policy_vhosts: list[str]


class Session(Answer):
    """The user of a session, or null."""

    user: SessionUser | None


class Provider(Answer):
    """An OpenID provider of the sign-in page, with the scopes that the console asks for."""

    label: str
    issuer: str
    client_id: str
    scopes: str


class OwnSession(Answer):
    """A session of the user of the request. Times are in milliseconds of Unix time."""

    id: str
    current: bool
    address: str
    user_agent: str
    opened_at: int
    used_at: int
    expires_at: int


class AnySession(OwnSession):
    """A session of any user."""

    user: str


class SignIn(Body):
    """Credentials: a user name and password, or a token and what renews it."""

    username: str | UnsetType = UNSET
    password: str | UnsetType = UNSET
    token: str | UnsetType = UNSET
    refresh_token: str | UnsetType = UNSET


class Auth(Answer):
    """Ways for users of the console to sign in."""

    oauth_enabled: bool
    oauth_client_id: str | UnsetType = UNSET
    oauth_disable_basic_auth: bool | UnsetType = UNSET
    oauth_provider_url: str | UnsetType = UNSET
    oauth_scopes: str | UnsetType = UNSET


class User(Answer):
    """A user. The hash is empty if the user has no password."""

    name: str
    password_hash: str
    hashing_algorithm: str
    tags: list[str]
    limits: dict[str, int]


class PermissionBody(Body):
    """Regular expressions over the names that the user may configure, write and read."""

    configure: str
    write: str
    read: str


class UserBody(Body):
    """A user. One without a password or hash cannot log in by password."""

    password: str | UnsetType = UNSET
    password_hash: str | UnsetType = UNSET
    hashing_algorithm: str | UnsetType = UNSET
    tags: str | list[str] | UnsetType = UNSET
    limits: dict[str, int] | UnsetType = UNSET
    permissions: dict[str, PermissionBody] | UnsetType = UNSET


class UserNames(Body):
    """Names of users."""

    users: list[str]


class Password(Body):
    """A password to hash."""

    password: str


class HashedPassword(Answer):
    """A password hash in RabbitMQ's format."""

    ok: str


class Permission(Answer):
    """The permissions of a user in a vhost, as regular expressions."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermission(Answer):
    """The topic permissions of a user for an exchange, as regular expressions."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class TopicPermissionBody(Body):
    """Regular expressions over the routing keys that the user may write and read."""

    exchange: str
    write: str
    read: str


class UserLimits(Answer):
    """The limits of a user."""

    user: str
    value: dict[str, int]


class VhostLimits(Answer):
    """The limits of a vhost."""

    vhost: str
    value: dict[str, int]


class Limit(Body):
    """The value of a limit."""

    value: int


# Vhosts, policies and parameters


class Vhost(QueueTotals):
    """A vhost."""

    name: str
    description: str
    tags: list[str]
    default_queue_type: str
    metadata: dict[str, Json]
    protected_from_deletion: bool
    tracing: bool
    cluster_state: dict[str, str]
    message_stats: MessageStats
    recv_oct: Rated
    send_oct: Rated


class VhostBody(Body):
    """Properties of a vhost."""

    description: str | UnsetType = UNSET
    tags: str | list[str] | UnsetType = UNSET
    default_queue_type: str | UnsetType = UNSET
    protected_from_deletion: bool | UnsetType = UNSET
    tracing: bool | UnsetType = UNSET
    metadata: dict[str, Json] | UnsetType = UNSET


class Policy(Answer):
    """A policy: settings of the queues or exchanges whose names match a regular expression."""

    vhost: str
    name: str
    pattern: str
    apply_to: str = field(name="apply-to")
    definition: Arguments
    priority: int


class PolicyBody(Body):
    """A policy."""

    pattern: str
    definition: Arguments
    priority: int | UnsetType = UNSET
    apply_to: Literal["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"] | UnsetType = field(
        name="apply-to", default=UNSET
    )


class Parameter(Answer):
    """A parameter of a component in a vhost.

    `user` is the user with whose permissions a shovel acts: empty if it is unknown, and absent for an operator.
    """

    vhost: str
    component: str
    name: str
    value: Json
    user: str | UnsetType = UNSET


class GlobalParameter(Answer):
    """A parameter of the broker."""

    name: str
    value: Json


class Value(Body):
    """The value of a parameter."""

    value: Json


# Exchanges, queues and bindings


class Exchange(Answer):
    """An exchange."""

    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Arguments
    policy: str | None
    user_who_performed_action: str
    message_stats: ExchangeStats
    deduplication_keys: int | UnsetType = UNSET
    dropped_duplicates: int | UnsetType = UNSET
    incoming: list[Json] | UnsetType = UNSET
    outgoing: list[Json] | UnsetType = UNSET


class ExchangeBody(Body):
    """Properties of an exchange."""

    type: str | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    auto_delete: bool | UnsetType = UNSET
    internal: bool | UnsetType = UNSET
    arguments: Arguments | UnsetType = UNSET


class Publish(Body):
    """A message to publish."""

    properties: dict[str, Json]
    routing_key: str
    payload: str
    payload_encoding: Literal["string", "base64"]


class Published(Answer):
    """Whether the message was routed to a queue."""

    routed: bool


class ConsumerQueue(Answer):
    """The queue of a consumer."""

    name: str
    vhost: str


class ChannelDetails(Answer):
    """The channel of a consumer."""

    name: str
    number: int
    user: str
    connection_name: str
    peer_host: str
    peer_port: int
    node: str


class Consumer(Answer):
    """A consumer."""

    consumer_tag: str
    queue: ConsumerQueue
    channel_details: ChannelDetails
    ack_required: bool
    active: bool
    activity_status: str
    arguments: Arguments
    exclusive: bool
    prefetch_count: int
    consumer_timeout: int | None
    user_who_performed_action: str


class ChartMark(Answer):
    """A mark in charts. `time` is in milliseconds of Unix time."""

    name: str
    time: int


class ConsumerChannel(Answer):
    """The channel of a consumer. `prefetch` limits its unacked messages; `credit` is that of a session of AMQP 1.0."""

    state: str
    unacked: int
    oldest_unacked_age: int | None
    prefetch: int
    credit: int | None


class ConsumerConnection(Answer):
    """The connection of a consumer."""

    state: str
    protocol: str


class ConsumerState(Consumer):
    """A consumer with the state of its channel and connection, which are null if the user may not see them."""

    priority: int
    unacked: int
    oldest_unacked_age: int | None
    connection: ConsumerConnection | None
    channel: ConsumerChannel | None


class Ready(Answer):
    """Ready messages of a queue, delayed ones, which become ready later, and those that are leased.

    The age of the oldest ready message is a minimum, in seconds; null if none is ready, and for streams.
    """

    ready: int
    delayed: int
    leased: int
    oldest_ready_age: int | None


class ReadyQueue(Ready):
    """A queue with ready messages."""

    vhost: str
    name: str


class Unacked(Answer):
    """Unacked messages, and the minimum age of the oldest one in seconds; null if nothing is unacked."""

    unacked: int
    oldest_unacked_age: int | None


class UnackedQueue(Unacked):
    """A queue with unacked messages."""

    vhost: str
    name: str


class UnackedChannel(UnackedQueue):
    """A channel or session with unacked messages."""

    user: str


class Throttling(Answer):
    """Why the broker does not read from a connection, or reads less, and the alarm of the node, if any."""

    reasons: list[Literal["alarm", "backlog", "behind", "commit", "login", "output", "turn"]]
    alarm: str


class Owner(Answer):
    """The connection of an exclusive queue."""

    name: str
    peer_host: str
    peer_port: int


class Queue(QueueTotals):
    """A queue or stream."""

    name: str
    vhost: str
    type: str
    state: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Arguments
    node: str
    leader: str
    members: list[str]
    online: list[str]
    consumers: int
    consumer_capacity: float
    consumer_utilisation: float
    exclusive_consumer_tag: str | None
    single_active_consumer_tag: str | None
    effective_policy_definition: Arguments
    policy: str | None
    operator_policy: str | None
    garbage_collection: GarbageCollection
    head_message_timestamp: int | None
    idle_since: str | None
    memory: int
    message_bytes: int
    message_bytes_paged_out: int
    message_bytes_persistent: int
    message_bytes_ram: int
    message_bytes_ready: int
    message_bytes_unacknowledged: int
    message_stats: MessageStats
    messages_paged_out: int
    messages_persistent: int
    messages_ram: int
    messages_ready_ram: int
    messages_unacknowledged_ram: int
    recoverable_slaves: list[str] | None
    reductions: Rated
    deduplication_keys: int | UnsetType = UNSET
    dropped_duplicates: int | UnsetType = UNSET
    owner_pid_details: Owner | UnsetType = UNSET
    consumer_details: list[Consumer] | UnsetType = UNSET
    deliveries: list[Json] | UnsetType = UNSET
    incoming: list[Json] | UnsetType = UNSET
    # Readers of a stream by node.
    readers: dict[str, int] | UnsetType = UNSET


class QueueBody(Body):
    """Properties of a queue. The argument `x-queue-type` has its type."""

    durable: bool | UnsetType = UNSET
    auto_delete: bool | UnsetType = UNSET
    arguments: Arguments | UnsetType = UNSET


class Action(Body):
    """An action on a queue, which has no effect."""

    action: str


class DestinationsBody(Body):
    """A message that is not published."""

    routing_key: str | UnsetType = UNSET
    properties: dict[str, Json] | list[Json] | UnsetType = UNSET


class Destinations(Answer):
    """The queues that a message would reach, at most 1,000, and their number."""

    queues: list[str]
    total: int


class Get(Body):
    """A request for messages of a queue. `truncate` limits the bytes of each payload."""

    count: int
    ackmode: Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]
    encoding: Literal["auto", "base64"]
    truncate: int | UnsetType = UNSET


class Message(Answer):
    """A message. `properties` is an empty list if there are none."""

    payload: str
    payload_bytes: int
    payload_encoding: Literal["string", "base64"]
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int
    properties: dict[str, Json] | list[Json]


class Holder(Answer):
    """The consumer that has an unacked message."""

    consumer_tag: str
    connection: int | None
    channel: int | None


class BrowsedMessage(Answer):
    """A message in its place."""

    id: int
    exchange: str
    routing_key: str
    redelivered: bool
    deliveries: int
    failures: int
    persistent: bool
    protocol: str
    properties: dict[str, Json]
    payload: str
    payload_bytes: int
    payload_encoding: Literal["string", "base64"]
    holder: Holder | None
    unacked_age: int | None
    ready_at: int | None
    encoded: str | None


class Browsed(Answer):
    """Messages of a queue, and the cursor at which the next request continues; null at the end."""

    queue_id: int
    messages: list[BrowsedMessage]
    examined: int
    skipped: int
    cursor: str | None


class Payload(Answer):
    """A range of a payload in base64, and the size of the whole payload."""

    first: int
    payload: str
    payload_bytes: int


class Condition(Body):
    """A condition on a message."""

    field: str
    match: Match | UnsetType = UNSET
    value: Json | UnsetType = UNSET


class Limited(Body):
    """The messages of a request, and the limits of its work."""

    where: list[Condition] | UnsetType = UNSET
    selector: str | UnsetType = UNSET
    since: str | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    examine: int | UnsetType = UNSET
    examine_bytes: int | UnsetType = UNSET
    seconds: float | UnsetType = UNSET


class SearchBody(Limited):
    """A request to look for messages."""

    state: Literal["ready", "unacked", "delayed"] | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    count: int | UnsetType = UNSET
    encoding: Literal["auto", "base64"] | UnsetType = UNSET
    truncate: int | UnsetType = UNSET


class CountBody(Limited):
    """A request to count messages."""

    state: Literal["ready", "delayed"] | UnsetType = UNSET


class Counted(Answer):
    """Numbers of messages, and the cursor at which the next request continues; null at the end."""

    queue_id: int
    messages: int
    bytes: int
    examined: int
    skipped: int
    cursor: str | None


class DeadLettersBody(Limited):
    """A request to count messages by their last death and by the value of a header."""

    header: str | UnsetType = UNSET


class GroupCondition(Answer):
    """A condition on the messages of a group."""

    field: str
    match: Match
    value: Json


class DeadLetterGroup(Answer):
    """Messages with the same last death, and the conditions that select them."""

    reason: str | None
    queue: str | None
    exchange: str | None
    header: str | None
    messages: int
    bytes: int
    where: list[GroupCondition]


class DeadLetters(Answer):
    """Groups of messages, and the cursor at which the next request continues; null at the end."""

    queue_id: int
    groups: list[DeadLetterGroup]
    others: int
    examined: int
    skipped: int
    cursor: str | None


class SelectBody(Limited):
    """A request about ready messages: those with these ids, or all that meet the conditions."""

    ids: list[int] | UnsetType = UNSET
    queue_id: int | UnsetType = UNSET


class ExportBody(Body):
    """A request for a file of messages: those with these ids, or all that meet the conditions, at most `count`."""

    where: list[Condition] | UnsetType = UNSET
    selector: str | UnsetType = UNSET
    since: str | UnsetType = UNSET
    state: Literal["ready", "unacked"] | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    count: int | UnsetType = UNSET
    encoding: Literal["auto", "base64"] | UnsetType = UNSET
    ids: list[int] | UnsetType = UNSET
    queue_id: int | UnsetType = UNSET
    format: Literal["lines", "array"] | UnsetType = UNSET


class ImportProblem(Answer):
    """A line whose message no queue got."""

    line: int
    reason: str


class ImportReport(Answer):
    """The result of an import. `stopped` is empty if all lines were processed; `uncertain` has a first and a last line."""

    lines: int
    imported: int
    unroutable: int
    refused: int
    problems: list[ImportProblem]
    uncertain: list[int] | None
    stopped: str


class TargetBody(SelectBody):
    """A request about ready messages and their target, one of `to_queue`, `to_exchange` and the origins."""

    to_queue: str | UnsetType = UNSET
    to_exchange: str | UnsetType = UNSET
    routing_key: str | UnsetType = UNSET
    to_origin: bool | UnsetType = UNSET
    to_origin_exchange: bool | UnsetType = UNSET


class ResendBody(Body):
    """A request to publish a changed copy of a message, and to delete the message."""

    id: int
    queue_id: int | UnsetType = UNSET
    exchange: str | UnsetType = UNSET
    routing_key: str | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_encoding: Literal["string", "base64"] | UnsetType = UNSET
    properties: Arguments | UnsetType = UNSET


class Relocated(Answer):
    """Numbers of messages that were changed and that stay, and the cursor at which the next request continues."""

    messages: int
    unroutable: int
    refused: int
    missing: int
    examined: int
    skipped: int
    cursor: str | None


class DeleteBody(Body):
    """A request to delete all objects whose names match an RE2 expression; a dry run unless `dry_run` is false."""

    kind: Literal["queues", "exchanges", "policies", "operator_policies", "users", "vhosts"]
    pattern: str
    vhost: str | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    if_unused: bool | UnsetType = UNSET
    if_empty: bool | UnsetType = UNSET


class Refusal(Answer):
    """An object that was not changed, and why."""

    name: str
    reason: str


class DeletedObjects(Answer):
    """The objects that match, those that were not deleted, and whether there are more."""

    names: list[str]
    refused: list[Refusal]
    more: bool


class ChangeQueuesBody(Body):
    """A request to change all queues whose names match an RE2 expression; a dry run unless `dry_run` is false."""

    action: Literal["purge", "pause", "resume"]
    pattern: str
    vhost: str | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    after: int | UnsetType = UNSET


class ChangedQueue(Answer):
    """A queue, and the number of its ready messages before the change."""

    name: str
    messages: int


class ChangedQueues(Answer):
    """The queues that match, those that were not changed, and where the next request continues; null at the end."""

    queues: list[ChangedQueue]
    refused: list[Refusal]
    after: int | None


class Binding(Answer):
    """A binding. `properties_key` identifies it among those with the same source and destination."""

    source: str
    vhost: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: Arguments
    properties_key: str


class BindingBody(Body):
    """A binding between the source and the destination of the path."""

    routing_key: str | UnsetType = UNSET
    arguments: Arguments | UnsetType = UNSET


# Connections and channels


class Connection(Answer):
    """A connection."""

    name: str
    vhost: str
    user: str
    protocol: str
    state: str
    type: str
    node: str
    host: str
    port: int
    peer_host: str
    peer_port: int
    auth_mechanism: str
    channel_max: int
    channels: int
    client_properties: Arguments
    connected_at: int
    container_id: str
    frame_max: int
    garbage_collection: GarbageCollection
    peer_cert_issuer: str | None
    peer_cert_subject: str | None
    peer_cert_validity: str | None
    recv_cnt: Rated
    recv_oct: Rated
    reductions: Rated
    send_cnt: Rated
    send_oct: Rated
    send_pend: int
    ssl: bool
    ssl_cipher: str | None
    ssl_hash: str | None
    ssl_key_exchange: str | None
    ssl_protocol: str | None
    timeout: int
    user_provided_name: str | None
    user_who_performed_action: str
    websocket_path: str


class Channel(Answer):
    """A channel of AMQP 0-9 or 0-9-1, or a session of 1.0."""

    name: str
    number: int
    vhost: str
    user: str
    state: str
    node: str
    acks_uncommitted: int
    confirm: bool
    connection_details: Owner
    consumer_count: int
    garbage_collection: GarbageCollection
    global_prefetch_count: int
    idle_since: str | None
    message_stats: ChannelStats
    messages_unacknowledged: int
    messages_uncommitted: int
    messages_unconfirmed: int
    pending_raft_commands: int
    prefetch_count: int
    reductions: Rated
    transactional: bool
    user_who_performed_action: str
    consumer_details: list[Consumer] | UnsetType = UNSET
    deliveries: list[Json] | UnsetType = UNSET
    publishes: list[Json] | UnsetType = UNSET


class SessionLink(Answer):
    """A link of a session of AMQP 1.0. `max_message_size` is a number or `unlimited`."""

    handle: int
    link_name: str
    delivery_count: int
    credit: int
    max_message_size: int | str


class IncomingLink(SessionLink):
    """A link on which the client sends."""

    target_address: str
    snd_settle_mode: Literal["unsettled", "settled", "mixed"]
    unconfirmed_messages: int


class OutgoingLink(SessionLink):
    """A link on which the client receives."""

    source_address: str
    queue_name: str
    send_settled: bool
    filter: list[Json]


class AmqpSession(Answer):
    """A session of AMQP 1.0 with its links."""

    channel_number: int
    handle_max: int
    next_incoming_id: int
    incoming_window: int
    next_outgoing_id: int
    remote_incoming_window: int
    remote_outgoing_window: int
    outgoing_unsettled_deliveries: int
    incoming_links: list[IncomingLink]
    outgoing_links: list[OutgoingLink]


class Link(Answer):
    """An AMQP 1.0 link. `role` is that of the broker; a suspended link has no session, credit and settle modes."""

    vhost: str
    user: str
    container: str
    name: str
    role: str
    address: str
    state: str
    connection_details: Owner
    session: int | None
    credit: int | None
    delivery_count: int | None
    sender_settle_mode: str | None
    receiver_settle_mode: str | None
    unsettled: int
    durable: str
    expiry: str
    timeout: int
    expires_at: int


class Shovel(Answer, kw_only=True):
    """A shovel. `timestamp` is the time of the last change of the state, `error` the last failure.

    `user` has the user with whose permissions the shovel acts at a URI without a host and a user; "" for an operator.

    `forwarded` counts the messages that were acknowledged to the source. `remaining` is null unless the shovel will end.
    """

    node: str
    timestamp: str
    name: str
    vhost: str
    type: Literal["dynamic", "static"]
    state: Literal["starting", "running", "terminated"]
    user: str
    reason: str | UnsetType = UNSET
    src_uri: str
    src_protocol: str
    src_queue: str | UnsetType = UNSET
    src_exchange: str | UnsetType = UNSET
    src_exchange_key: str | UnsetType = UNSET
    src_address: str | UnsetType = UNSET
    dest_uri: str
    dest_protocol: str
    dest_queue: str | UnsetType = UNSET
    dest_exchange: str | UnsetType = UNSET
    dest_exchange_key: str | UnsetType = UNSET
    dest_address: str | UnsetType = UNSET
    published: int
    forwarded: int
    pending: int
    remaining: int | None
    restarts: int
    error: str


class Transaction(Answer):
    """An open transaction of a channel or of an AMQP 1.0 session. `size` has the bytes of its publishes."""

    vhost: str
    user: str
    connection_details: Owner
    channel: int
    channel_name: str
    protocol: str
    kind: Literal["tx", "dtx", "local"]
    id: str
    publishes: int
    settlements: int
    size: int
    state: Literal["open", "committing", "failed"]
    reason: str
    age: float


class Branch(Answer):
    """A branch of a distributed transaction. `timeout` is the number of seconds until its rollback."""

    vhost: str
    branch: str
    user: str
    state: str
    timed_out: bool
    channels: int
    publishes: int
    bytes: int
    settlements: int
    age: int
    timeout: int | None


# Pipelines


class LeaseBatch(Answer):
    """An uncommitted batch of a lease."""

    batch: int
    count: int
    bytes: int
    read: bool
    age: float


class Lease(Answer):
    """A reader's lease of a queue. `lag` counts ready messages, and those of uncommitted batches.

    `lag_seconds` is the minimum age of the oldest one.
    """

    vhost: str
    queue: str
    lease: str
    epoch: int
    committed: int
    timeout: float | None
    age: float
    idle: float
    readers: int
    messages: int
    bytes: int
    batches: list[LeaseBatch]
    ready: int
    lag: int
    lag_bytes: int
    lag_seconds: float


class Sink(Answer):
    """A sink with its last committed batch, the batch that is being committed, and why that waits."""

    vhost: str
    app: str
    user: str
    batch: int | None
    promoting: int | None
    moved: int | None
    waits_for: str | None


class SinkTransaction(Answer):
    """An open transaction of a sink. `idle` is the number of seconds since its last publish."""

    vhost: str
    stage: str
    app: str
    user: str
    state: str
    messages: int
    bytes: int
    memory: int
    idle: int


class StreamConsumer(Answer):
    """The position of a named consumer of a stream; `lag_seconds` is the age of the oldest unread message."""

    vhost: str
    stream: str
    consumer: str
    next_offset: int | None
    lag: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    reading: bool


class SealedSegment(Answer):
    """A sealed segment of a stream, with its first and last offset and times in milliseconds since 1970."""

    id: str
    path: str
    first: int
    last: int
    count: int
    bytes: int
    body_bytes: int
    first_time: int
    last_time: int
    schema_version: int
    crc32: int
    groups: list[int]
    footer_bytes: int
    footer_crc32: int
    held_by: int | UnsetType = UNSET


class IcebergTable(Answer):
    """The Iceberg table of a stream, and when it was up to date, in milliseconds since 1970."""

    vhost: str
    name: str
    table: str | None
    files: int
    pending: bool
    synced: int | None
    problem: str | None


class Stream(Answer):
    """A stream with its sealed segments and its Iceberg table."""

    vhost: str
    name: str
    messages: int
    bytes: int
    memory: int
    first_offset: int
    next_offset: int
    since: str | None
    readers: int
    consumers: int
    lag: int | None
    publishers: int
    segments: int
    segment_bytes: int
    unsealed: int
    sealed_until: int
    sealing: bool
    unsealed_because: str | None
    sealing_problem: str | None
    arguments: dict[str, Json]
    sealed: list[SealedSegment]
    table: IcebergTable | None


class Durations(Answer):
    """The number of durations in each bucket, and their sum in seconds."""

    counts: list[int]
    total: float


class Performance(Answer):
    """Durations of the longest turns of the event loop and of commits, in buckets up to `bounds` seconds."""

    bounds: list[float]
    turns: Durations
    commits: Durations
    loop_cpu: float
    slow_turns: int
    longest_turn: float


class Shard(Answer):
    """A process that vhosts are in. `memory` is in bytes."""

    number: int
    state: Literal["ready", "starting", "restarting", "moving", "stopped", "idle"]
    pid: int
    vhosts: list[str]
    connections: int
    memory: int
    restarts: int
    node: str
    hangs: int
    epoch: int
    takeovers: int
    takeover_age: float | None
    takeover_seconds: float | None


class Standby(Answer):
    """A standby of PostgreSQL. `lag` is in bytes, None if it is unknown."""

    name: str
    state: str
    sync: str
    lag: int | None


class LastTakeover(Answer):
    """The last take-over. Times are in seconds."""

    shard: int
    node: str
    age: float
    seconds: float | None


class Cluster(Answer):
    """The cluster at a glance."""

    database: str
    problem: str
    version: str
    synchronous: str
    standbys: list[Standby]
    waiting: int
    waiting_seconds: float
    transaction_age: int
    nodes: dict[str, int]
    shards: int
    unowned: list[int]
    unreached: dict[str, list[str]]
    takeovers: int
    last_takeover: LastTakeover | None


class ClusterNode(Answer):
    """A node of the cluster. `clock` is how far its clock is ahead of PostgreSQL's, in seconds."""

    name: str
    state: Literal["live", "draining", "gone"]
    address: str
    version: str
    shards: list[int]
    here: bool
    clock: float | None
    format: int | None
    unreachable: list[str]


class MoveBody(Body):
    """The node that a shard is to move to."""

    node: str


class DrainBody(Body):
    """Whether a node is to own no shards."""

    on: bool = True


# Alerts


class AlertRule(Answer):
    """A rule of alerts."""

    name: str
    kind: Literal["depth", "growth", "no_consumers", "no_acks", "ready_age", "unacked_age", "memory", "disk"]
    vhost: str | None
    pattern: str
    threshold: float
    seconds: int
    silenced_until: int
    webhook: str
    mail: list[str]


# The broker


class Described(Answer):
    """An exchange type or a SASL mechanism."""

    name: str
    description: str
    enabled: bool


class Application(Answer):
    """A part of the broker."""

    name: str
    description: str
    version: str


class ListenerContext(Answer):
    """An address of the HTTP API."""

    description: str
    ip: str
    node: str
    path: str
    port: str
    protocol: str
    cowboy_opts: str
    ssl_opts: Json


class Listener(Answer):
    """An address that the broker listens on."""

    node: str
    protocol: str
    ip_address: str
    port: int
    socket_opts: dict[str, Json]


class Churn(Answer):
    """Counts of connections, channels and queues that were created and closed."""

    channel_closed: Rated
    channel_created: Rated
    connection_closed: Rated
    connection_created: Rated
    queue_created: Rated
    queue_declared: Rated
    queue_deleted: Rated


class ObjectTotals(Answer):
    """Numbers of objects."""

    channels: int
    connections: int
    consumers: int
    exchanges: int
    queues: int


class Overview(Answer):
    """Versions and totals. The totals are those of the vhosts that the user sees."""

    management_version: str
    rabbitmq_version: str
    product_name: str
    product_version: str
    erlang_version: str
    erlang_full_version: str
    cluster_name: str
    node: str
    cluster_tags: dict[str, str]
    node_tags: dict[str, str]
    churn_rates: Churn
    default_queue_type: str
    disable_stats: bool
    enable_queue_totals: bool
    exchange_types: list[Described]
    is_op_policy_updating_enabled: bool
    message_stats: MessageStats
    object_totals: ObjectTotals
    queue_totals: QueueTotals
    rates_mode: str
    release_series_support_status: str
    sample_retention_policies: dict[str, list[int]]
    statistics_db_event_queue: int
    contexts: list[ListenerContext] | UnsetType = UNSET
    listeners: list[Listener] | UnsetType = UNSET


class ClusterName(Answer):
    """The name of the cluster."""

    name: str


class Node(Churn):
    """The broker's process and its machine. Statistics that Leveret does not have are 0."""

    name: str
    type: str
    running: bool
    being_drained: bool
    maintenance: bool
    uptime: int
    os_pid: str
    applications: list[Application]
    auth_mechanisms: list[Described]
    exchange_types: list[Described]
    contexts: list[ListenerContext]
    enabled_plugins: list[str]
    cluster_links: list[Json]
    partitions: list[str]
    config_files: list[str]
    log_files: list[str]
    db_dir: str
    disk_free: Rated
    disk_free_alarm: bool
    disk_free_limit: int
    fd_total: int
    fd_used: Rated
    mem_alarm: bool
    mem_calculation_strategy: str
    mem_limit: int
    mem_used: Rated
    metrics_gc_queue_length: dict[str, int]
    net_ticktime: int
    proc_total: int
    proc_used: Rated
    processors: int
    ra_open_file_metrics: dict[str, int]
    rates_mode: str
    run_queue: int
    sockets_total: int
    sockets_used: Rated
    context_switches: Rated
    gc_bytes_reclaimed: Rated
    gc_num: Rated
    io_file_handle_open_attempt_count: Rated
    io_file_handle_open_attempt_avg_time: RatedTime
    io_read_bytes: Rated
    io_read_count: Rated
    io_read_avg_time: RatedTime
    io_reopen_count: Rated
    io_seek_count: Rated
    io_seek_avg_time: RatedTime
    io_sync_count: Rated
    io_sync_avg_time: RatedTime
    io_write_bytes: Rated
    io_write_count: Rated
    io_write_avg_time: RatedTime
    mnesia_disk_tx_count: Rated
    mnesia_ram_tx_count: Rated
    msg_store_read_count: Rated
    msg_store_write_count: Rated
    queue_index_read_count: Rated
    queue_index_write_count: Rated


class MemoryTotal(Answer):
    """Memory of the process in bytes."""

    allocated: int
    erlang: int
    rss: int


class NodeMemory(Answer):
    """Memory of the node: bytes by use, the strategy of measuring, and totals."""

    memory: dict[str, int | str | MemoryTotal]


class RelativeMemory(Answer):
    """Memory of the node: percentages by use."""

    memory: dict[str, int]


class OperationResult(Answer):
    """The result of an operation of the control socket: an object, a list, or null."""

    result: Json


class History(Answer):
    """Statistics of a day or a month: the values of gauges and the increments of counters for each step.

    `deleted` has the times at which earlier queues with the name were deleted.
    """

    deleted: list[int]
    step: int
    gauges: list[str]
    counters: list[str]
    samples: list[dict[str, int]]


class VhostDefinitions(Struct, kw_only=True):
    """Definitions of one vhost, in RabbitMQ's file format. Every part may be omitted in a request."""

    rabbit_version: str | UnsetType = UNSET
    rabbitmq_version: str | UnsetType = UNSET
    product_name: str | UnsetType = UNSET
    product_version: str | UnsetType = UNSET
    rabbitmq_definition_format: str | UnsetType = UNSET
    explanation: str | UnsetType = UNSET
    original_vhost_name: str | UnsetType = UNSET
    default_queue_type: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    metadata: dict[str, Json] | UnsetType = UNSET
    limits: dict[str, int] | UnsetType = UNSET
    parameters: list[dict[str, Json]] | UnsetType = UNSET
    policies: list[dict[str, Json]] | UnsetType = UNSET
    queues: list[dict[str, Json]] | UnsetType = UNSET
    exchanges: list[dict[str, Json]] | UnsetType = UNSET
    bindings: list[dict[str, Json]] | UnsetType = UNSET


class Definitions(VhostDefinitions):
    """Definitions of the broker or of one vhost, in RabbitMQ's file format. Every part may be omitted in a request."""

    original_cluster_name: str | UnsetType = UNSET
    users: list[dict[str, Json]] | UnsetType = UNSET
    vhosts: list[dict[str, Json]] | UnsetType = UNSET
    permissions: list[dict[str, Json]] | UnsetType = UNSET
    topic_permissions: list[dict[str, Json]] | UnsetType = UNSET
    global_parameters: list[dict[str, Json]] | UnsetType = UNSET
