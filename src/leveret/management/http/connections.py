"""Connections, channels and consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.management.connection_names import client_of
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_authorised, not_found
from leveret.management.http.lists import Source, columns_of, select, select_from, value_at
from leveret.management.http.measured import Rates, is_rate, rate_of
from leveret.management.http.objects import (
    CHANNEL_STATISTICS,
    CONNECTION_STATISTICS,
    PROTOCOLS,
    CachedChannel,
    CachedConnection,
    connection_data,
    endpoint_of,
    idle_since,
)
from leveret.management.http.request import NO_CONTENT, Answer, Request
from leveret.management.http.statistics import GARBAGE_COLLECTION, MESSAGE_STATS, message_stats, with_rates
from leveret.management.json_values import ReplyValue

_CHANNEL_STATS: Final = tuple(name for name in MESSAGE_STATS if name not in ("disk_reads", "disk_writes"))
# Keys of rows whose values are those of the broker's answer, which may have another name there.
_CONNECTION_KEYS: Final = {
    "name": "name",
    "vhost": "vhost",
    "user": "user",
    "state": "state",
    "channels": "channels",
    "connected_at": "connected_at",
    "recv_oct": "bytes_in",
    "recv_cnt": "reads",
    "send_oct": "bytes_out",
    "send_cnt": "writes",
    "ssl": "tls",
    "timeout": "heartbeat",
    "channel_max": "channel_max",
    "frame_max": "frame_max",
}
_CHANNEL_KEYS: Final = {
    "number": "number",
    "vhost": "vhost",
    "user": "user",
    "consumer_count": "consumers",
    "messages_unacknowledged": "unacked",
    "messages_unconfirmed": "unconfirmed",
    "prefetch_count": "consumer_prefetch",
    "global_prefetch_count": "prefetch",
}
_REFUSED: Final = "User not authorised to access object"


def connection_row(item: Row, node: str, rates: Rates | None = None) -> Row:
    """Return a connection."""
    return {
        **connection_data(item),
        "channels": item["channels"],
        "client_properties": item["client_properties"],
        "container_id": item.get("container_id", ""),  # other nodes may have an earlier version
        "garbage_collection": GARBAGE_COLLECTION,
        "node": node,
        **with_rates({"recv_cnt": item["reads"], "recv_oct": item["bytes_in"], "reductions": 0}, rates),
        **with_rates({"send_cnt": item["writes"], "send_oct": item["bytes_out"]}, rates),
        "send_pend": item.get("unwritten", 0),
        "state": item["state"],
        "user_provided_name": item["client_properties"].get("connection_name"),
        "websocket_path": item.get("websocket_path", ""),  # other nodes may have an earlier version
    }


def _stats(item: Row) -> dict[str, int]:
    """Return the values of `message_stats` of a channel."""
    return {
        "publish": item["published"],
        "confirm": item["confirmed"],
        "deliver": item["delivered"] - item["delivered_no_ack"] - item["got"] - item["got_no_ack"],
        "deliver_no_ack": item["delivered_no_ack"],
        "deliver_get": item["delivered"],
        "get": item["got"],
        "get_no_ack": item["got_no_ack"],
        "get_empty": item["got_empty"],
        "redeliver": item["redelivered"],
        "ack": item["acked"],
        "return_unroutable": item["returned"],
        "drop_unroutable": item["dropped"],
    }


def channel_row(
    channel: CachedChannel, connections: dict[int, Row], node: str, tick: int, rates: Rates | None = None
) -> Row:
    """Return a channel."""
    item = channel.item
    return {
        "acks_uncommitted": item["uncommitted_acks"],
        "confirm": item["mode"] == "confirm",
        "connection_details": peer_of(connections.get(item["connection"])),
        "consumer_count": item["consumers"],
        "garbage_collection": GARBAGE_COLLECTION,
        "global_prefetch_count": item["prefetch"],
        "idle_since": idle_since(channel.changed_at, tick),
        "message_stats": message_stats(_stats(item), rates, _CHANNEL_STATS),
        "messages_unacknowledged": item["unacked"],
        "messages_uncommitted": item["uncommitted"],
        "messages_unconfirmed": item["unconfirmed"],
        "name": _name_of(item, connections),
        "node": node,
        "number": item["number"],
        "pending_raft_commands": 0,
        "prefetch_count": item["consumer_prefetch"],
        **with_rates({"reductions": 0}, rates),
        "state": "running" if item["state"] == "running" else "flow",
        "transactional": item["mode"] == "tx",
        "user": item["user"],
        "user_who_performed_action": item["user"],
        "vhost": item["vhost"],
    }


def consumer_row(item: Row, connections: dict[int, Row], node: str) -> Row:
    """Return a consumer. An internal one has empty `channel_details`, as one whose connection the user does not see."""
    connection = connections.get(item["connection"])
    channel: Row = {}
    if connection is not None:
        details = peer_of(connection)
        channel = {
            "connection_name": connection["name"],
            "name": channel_name(connection, item["channel"]),
            "node": node,
            "number": item["channel"],
            "peer_host": details["peer_host"],
            "peer_port": details["peer_port"],
            "user": connection["user"],
        }
    return {
        "ack_required": not item["no_ack"],
        "active": item["active"],
        "activity_status": _activity_of(item),
        "arguments": item["arguments"],
        "channel_details": channel,
        "consumer_tag": item["tag"],
        "consumer_timeout": item["timeout"],
        "exclusive": item["exclusive"],
        "prefetch_count": item["prefetch"],
        "queue": {"name": item["queue"], "vhost": item["vhost"]},
        "user_who_performed_action": "" if connection is None else connection["user"],
    }


def _activity_of(consumer: Row) -> str:
    if consumer["single_active"]:
        return "single_active"
    return "up" if consumer["active"] else "waiting"


def peer_of(connection: Row | None) -> Row:
    """Return the name and peer of a connection, as other objects refer to it."""
    if connection is None:
        return {"name": "", "peer_host": "", "peer_port": 0}
    host, port = endpoint_of(client_of(connection["name"]))
    return {"name": connection["name"], "peer_host": host, "peer_port": port}


def channel_name(connection: Row | None, number: int) -> str:
    return f"{'' if connection is None else connection['name']} ({number})"


def _name_of(channel: Row, connections: dict[int, Row]) -> str:
    return channel_name(connections.get(channel["connection"]), channel["number"])


async def connections_by_number(request: Request) -> dict[int, Row]:
    """Return the connections of now that the user sees by their numbers, as the broker describes them."""
    await request.cache.refresh_now()
    return {number: item for number, item in _items(request).items() if may_see(request, item["user"])}


def _items(request: Request) -> dict[int, Row]:
    return {number: connection.item for number, connection in request.cache.connections.items()}


def is_amqp10(connection: Row) -> bool:
    """Return whether a connection, as the broker describes it, uses AMQP 1.0."""
    return connection["protocol"] in PROTOCOLS


def may_see(request: Request, user: str) -> bool:
    """Return whether the user of a request sees the connections of a user."""
    return request.identity.is_monitor() or user == request.identity.name


def _connection(request: Request, connection: CachedConnection) -> Row:
    rates = Rates([connection], CONNECTION_STATISTICS, request.cache.tick, request.windows)
    return connection_row(connection.item, request.settings.node, rates)


async def _list(request: Request, wanted: Callable[[Row], bool]) -> Answer:
    """List the connections that the user sees: the own ones, or all for monitoring."""
    await request.cache.refresh()
    node, tick = request.settings.node, request.cache.tick
    found = [
        connection
        for connection in request.cache.connections.values()
        if may_see(request, connection.item["user"]) and wanted(connection.item)
    ]
    request.check_listed_samples(len(found))

    def value(connection: CachedConnection, keys: list[str]) -> ReplyValue:
        if is_rate(keys):
            return rate_of(connection, CONNECTION_STATISTICS, keys, tick)
        if len(keys) == 1 and keys[0] in _CONNECTION_KEYS:
            return connection.item[_CONNECTION_KEYS[keys[0]]]
        return value_at(connection_row(connection.item, node), keys)

    def name(connection: CachedConnection) -> str:
        return str(connection.item["name"])

    def order(connection: CachedConnection) -> tuple[str, str]:
        return str(connection.item["vhost"]), connection.item["name"]

    source = Source(found, lambda connection: _connection(request, connection), name, value, order)
    return Answer(body=select_from(source, request.query))


async def find(request: Request) -> CachedConnection:
    """Return the connection that the path names, as it is now. Raises `HttpError`."""
    await request.cache.refresh_now()
    for connection in request.cache.connections.values():
        if connection.item["name"] == request.name:
            if not may_see(request, connection.item["user"]):
                raise not_authorised(_REFUSED)
            return connection
    raise not_found()


async def list_all(request: Request) -> Answer:
    return await _list(request, lambda item: True)


async def list_in_vhost(request: Request) -> Answer:
    return await _list(request, lambda item: bool(item["vhost"] == request.vhost))


async def list_of_user(request: Request) -> Answer:
    return await _list(request, lambda item: bool(item["user"] == request.path["user"]))


async def show(request: Request) -> Answer:
    return Answer(body=columns_of(_connection(request, await find(request)), request.query))


async def list_sessions(request: Request) -> Answer:
    """List the sessions of a connection of AMQP 1.0 with their links."""
    item = (await find(request)).item
    if not is_amqp10(item):
        raise bad_request(f"connection does not use AMQP 1.0, but {item['protocol']}")
    of_connection = {"number": item["number"]}
    sessions = await request.control.call("connections.sessions", of_connection)
    links = await request.control.call("connections.links", of_connection)
    return Answer(
        body=[_session_row(row, [each for each in links if each["session"] == row["channel"]]) for row in sessions]
    )


def _session_row(session: Row, links: list[Row]) -> Row:
    return {
        "channel_number": session["channel"],
        "handle_max": session["handle_max"],
        "next_incoming_id": session["next_incoming_id"],
        "incoming_window": session["incoming_window"],
        "next_outgoing_id": session["next_outgoing_id"],
        "remote_incoming_window": session["remote_incoming_window"],
        "remote_outgoing_window": session["remote_outgoing_window"],
        "outgoing_unsettled_deliveries": session["unsettled"],
        "incoming_links": [
            {
                **_link_row(each),
                "target_address": each["address"],
                "snd_settle_mode": each["sender_settle_mode"],
                "max_message_size": each["max_message_size"] or "unlimited",
                "unconfirmed_messages": 0,
            }
            for each in links
            if each["receives"]
        ],
        "outgoing_links": [
            {
                **_link_row(each),
                "source_address": each["address"],
                "queue_name": each["queue"],
                "send_settled": each["sender_settle_mode"] == "settled",
                "max_message_size": each["max_message_size"] or "unlimited",
                "filter": [],
            }
            for each in links
            if not each["receives"]
        ],
    }


def _link_row(link: Row) -> Row:
    """Return the keys of links in both directions."""
    return {
        "handle": link["handle"],
        "link_name": link["name"],
        "delivery_count": link["delivery_count"],
        "credit": link["credit"],
    }


async def close(request: Request) -> Answer:
    """Close a connection, with the reason in the header `X-Reason`."""
    item = (await find(request)).item
    if item["user"] != request.identity.name and not request.identity.is_administrator():
        raise not_authorised(_REFUSED)
    reason = request.headers.get("x-reason") or "Closed via management plugin"
    await request.change("connections.close", {"number": item["number"], "reason": reason})
    return NO_CONTENT


async def close_of_user(request: Request) -> Answer:
    user = request.path["user"]
    if user != request.identity.name and not request.identity.is_administrator():
        raise not_authorised(_REFUSED)
    reason = request.headers.get("x-reason") or "Closed via management plugin"
    await request.change("connections.close_user", {"user": user, "reason": reason})
    return NO_CONTENT


def _channel(request: Request, channel: CachedChannel, connections: dict[int, Row]) -> Row:
    rates = Rates([channel], CHANNEL_STATISTICS, request.cache.tick, request.windows)
    return channel_row(channel, connections, request.settings.node, request.cache.tick, rates)


def _select_channels(request: Request, found: list[CachedChannel], connections: dict[int, Row]) -> Answer:
    node, tick = request.settings.node, request.cache.tick
    request.check_listed_samples(len(found))

    def name(channel: CachedChannel) -> str:
        return _name_of(channel.item, connections)

    def value(channel: CachedChannel, keys: list[str]) -> ReplyValue:
        item = channel.item
        if is_rate(keys):
            return rate_of(channel, CHANNEL_STATISTICS, keys, tick)
        if len(keys) == 2 and keys[0] == "message_stats":
            return _stats(item).get(keys[1])
        if keys == ["name"]:
            return name(channel)
        if len(keys) == 1 and keys[0] in _CHANNEL_KEYS:
            return item[_CHANNEL_KEYS[keys[0]]]
        return value_at(channel_row(channel, connections, node, tick), keys)

    def order(channel: CachedChannel) -> tuple[str, str]:
        return str(channel.item["vhost"]), name(channel)

    source = Source(found, lambda channel: _channel(request, channel, connections), name, value, order)
    return Answer(body=select_from(source, request.query))


async def _list_channels(request: Request, wanted: Callable[[Row], bool]) -> Answer:
    """List the channels that the user sees: those of the own connections, or all for monitoring."""
    await request.cache.refresh()
    found = [
        channel
        for channel in request.cache.channels.values()
        if may_see(request, channel.item["user"]) and wanted(channel.item)
    ]
    return _select_channels(request, found, _items(request))


async def list_channels(request: Request) -> Answer:
    return await _list_channels(request, lambda item: True)


async def list_channels_in_vhost(request: Request) -> Answer:
    return await _list_channels(request, lambda item: bool(item["vhost"] == request.vhost))


async def list_channels_of_connection(request: Request) -> Answer:
    item = (await find(request)).item
    found = [channel for (number, _), channel in request.cache.channels.items() if number == item["number"]]
    return _select_channels(request, found, {item["number"]: item})


async def show_channel(request: Request) -> Answer:
    """Return a channel with its consumers."""
    await request.cache.refresh_now()
    connections = _items(request)
    node = request.settings.node
    for channel in request.cache.channels.values():
        item = channel.item
        if _name_of(item, connections) != request.name:
            continue
        if not may_see(request, item["user"]):
            raise not_authorised(_REFUSED)
        consumers = [
            consumer_row(consumer, connections, node)
            for consumer in await request.control.call("consumers.list", {"vhost": item["vhost"]})
            if (consumer["connection"], consumer["channel"]) == (item["connection"], item["number"])
        ]
        row = _channel(request, channel, connections)
        row |= {"consumer_details": consumers, "deliveries": [], "publishes": []}
        return Answer(body=columns_of(row, request.query))
    raise not_found()


async def _consumers(request: Request, vhost: str | None) -> list[Row]:
    """Return the consumers that the user sees: those of the own connections, or all for monitoring."""
    connections = await connections_by_number(request)
    identity, node = request.identity, request.settings.node
    found = await request.control.list("consumers.list", {"vhost": vhost})
    return [
        consumer_row(item, connections, node)
        for item in found
        if identity.is_monitor() or (item["connection"] in connections and identity.sees(item["vhost"]))
    ]


async def list_consumers(request: Request) -> Answer:
    return Answer(body=select(await _consumers(request, None), request.query))


async def list_consumers_in_vhost(request: Request) -> Answer:
    return Answer(body=select(await _consumers(request, request.vhost), request.query))
