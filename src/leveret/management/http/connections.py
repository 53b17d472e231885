"""Connections, channels and consumers."""

from __future__ import annotations

from typing import Any, Final

from leveret.management.http.control import Row
from leveret.management.http.errors import not_authorised, not_found
from leveret.management.http.lists import columns_of, select
from leveret.management.http.request import NO_CONTENT, Answer, Request
from leveret.management.http.statistics import garbage_collection, message_stats, with_rates

_PROTOCOLS: Final = {"AMQP 1.0": "AMQP 1-0"}
_CHANNEL_STATS: Final = (
    "ack",
    "confirm",
    "deliver",
    "deliver_get",
    "deliver_no_ack",
    "drop_unroutable",
    "get",
    "get_empty",
    "get_no_ack",
    "publish",
    "redeliver",
    "return_unroutable",
)
_REFUSED: Final = "User not authorised to access object"


def connection_row(item: Row, node: str) -> Row:
    """Return a connection."""
    peer, _, own = item["name"].partition(" -> ")
    peer_host, peer_port = _endpoint(peer)
    host, port = _endpoint(own)
    return {
        "auth_mechanism": "PLAIN",
        "channel_max": item["channel_max"],
        "channels": item["channels"],
        "client_properties": item["client_properties"],
        "connected_at": item["connected_at"],
        "frame_max": item["frame_max"],
        "garbage_collection": garbage_collection(),
        "host": host,
        "name": item["name"],
        "node": node,
        "peer_cert_issuer": None,
        "peer_cert_subject": None,
        "peer_cert_validity": None,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "port": port,
        "protocol": _PROTOCOLS.get(item["protocol"], item["protocol"]),
        **with_rates({"recv_cnt": 0, "recv_oct": item["octets_in"], "reductions": 0}),
        **with_rates({"send_cnt": 0, "send_oct": item["octets_out"]}),
        "send_pend": 0,
        "ssl": item["tls"],
        "ssl_cipher": None,
        "ssl_hash": None,
        "ssl_key_exchange": None,
        "ssl_protocol": None,
        "state": item["state"],
        "timeout": item["heartbeat"],
        "type": "network",
        "user": item["user"],
        "user_provided_name": item["client_properties"].get("connection_name"),
        "user_who_performed_action": item["user"],
        "vhost": item["vhost"],
    }


def channel_row(item: Row, connections: dict[int, Row], node: str) -> Row:
    """Return a channel."""
    connection = connections.get(item["connection"])
    name = channel_name(connection, item["number"])
    return {
        "acks_uncommitted": 0,
        "confirm": item["mode"] == "confirm",
        "connection_details": peer_of(connection),
        "consumer_count": item["consumers"],
        "garbage_collection": garbage_collection(),
        "global_prefetch_count": 0,
        "idle_since": None,
        "message_stats": message_stats(_CHANNEL_STATS, publish=item["published"]),
        "messages_unacknowledged": item["unacked"],
        "messages_uncommitted": 0,
        "messages_unconfirmed": item["unconfirmed"],
        "name": name,
        "node": node,
        "number": item["number"],
        "pending_raft_commands": 0,
        "prefetch_count": item["prefetch"],
        **with_rates({"reductions": 0}),
        "state": "running" if item["state"] == "running" else "flow",
        "transactional": item["mode"] == "tx",
        "user": item["user"],
        "user_who_performed_action": item["user"],
        "vhost": item["vhost"],
    }


def consumer_row(item: Row, connections: dict[int, Row], node: str) -> Row:
    """Return a consumer. An internal one has empty `channel_details`."""
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
        "activity_status": "up" if item["active"] else "waiting",
        "arguments": item["arguments"],
        "channel_details": channel,
        "consumer_tag": item["tag"],
        "consumer_timeout": None,
        "exclusive": item["exclusive"],
        "prefetch_count": 0,
        "queue": {"name": item["queue"], "vhost": item["vhost"]},
        "user_who_performed_action": "" if connection is None else connection["user"],
    }


def peer_of(connection: Row | None) -> Row:
    """Return the name and peer of a connection, as other objects refer to it."""
    if connection is None:
        return {"name": "", "peer_host": "", "peer_port": 0}
    host, port = _endpoint(connection["name"].partition(" -> ")[0])
    return {"name": connection["name"], "peer_host": host, "peer_port": port}


def channel_name(connection: Row | None, number: Any) -> str:
    return f"{'' if connection is None else connection['name']} ({number})"


async def connections_by_number(request: Request) -> dict[int, Row]:
    """Return the connections by their numbers, as the broker describes them."""
    return {item["number"]: item for item in await request.control.call("connections.list")}


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def _may_see(request: Request, user: str) -> bool:
    return request.identity.is_monitor() or user == request.identity.name


async def _visible(request: Request) -> list[Row]:
    """Return the connections that the user sees: the own ones, or all for monitoring."""
    return [item for item in await request.control.call("connections.list") if _may_see(request, item["user"])]


async def _find(request: Request) -> Row:
    """Return the connection that the path names. Raises `HttpError`."""
    for item in await request.control.call("connections.list"):
        if item["name"] == request.name:
            if not _may_see(request, item["user"]):
                raise not_authorised(_REFUSED)
            found: Row = item
            return found
    raise not_found()


async def list_all(request: Request) -> Answer:
    found = [connection_row(item, request.settings.node) for item in await _visible(request)]
    return Answer(body=select(found, request.query))


async def list_in_vhost(request: Request) -> Answer:
    found = [item for item in await _visible(request) if item["vhost"] == request.vhost]
    return Answer(body=select([connection_row(item, request.settings.node) for item in found], request.query))


async def list_of_user(request: Request) -> Answer:
    found = [item for item in await _visible(request) if item["user"] == request.path["user"]]
    return Answer(body=select([connection_row(item, request.settings.node) for item in found], request.query))


async def show(request: Request) -> Answer:
    return Answer(body=columns_of(connection_row(await _find(request), request.settings.node), request.query))


async def close(request: Request) -> Answer:
    """Close a connection, with the reason in the header `X-Reason`."""
    item = await _find(request)
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


async def _channels(request: Request) -> list[Row]:
    connections = await connections_by_number(request)
    found = await request.control.call("channels.list")
    node = request.settings.node
    return [channel_row(item, connections, node) for item in found if _may_see(request, item["user"])]


async def list_channels(request: Request) -> Answer:
    return Answer(body=select(await _channels(request), request.query))


async def list_channels_in_vhost(request: Request) -> Answer:
    found = [row for row in await _channels(request) if row["vhost"] == request.vhost]
    return Answer(body=select(found, request.query))


async def list_channels_of_connection(request: Request) -> Answer:
    item = await _find(request)
    connections = {item["number"]: item}
    channels = await request.control.call("channels.list", {"vhost": item["vhost"]})
    own = [channel for channel in channels if channel["connection"] == item["number"]]
    return Answer(body=select([channel_row(row, connections, request.settings.node) for row in own], request.query))


async def show_channel(request: Request) -> Answer:
    """Return a channel with its consumers."""
    connections = await connections_by_number(request)
    node = request.settings.node
    for item in await request.control.call("channels.list"):
        row = channel_row(item, connections, node)
        if row["name"] != request.name:
            continue
        if not _may_see(request, item["user"]):
            raise not_authorised(_REFUSED)
        consumers = [
            consumer_row(consumer, connections, node)
            for consumer in await request.control.call("consumers.list", {"vhost": item["vhost"]})
            if (consumer["connection"], consumer["channel"]) == (item["connection"], item["number"])
        ]
        row |= {"consumer_details": consumers, "deliveries": [], "publishes": []}
        return Answer(body=columns_of(row, request.query))
    raise not_found()


async def _consumers(request: Request, vhost: str | None) -> list[Row]:
    connections = await connections_by_number(request)
    node = request.settings.node
    found = await request.control.call("consumers.list", {"vhost": vhost})
    return [consumer_row(item, connections, node) for item in found if request.identity.sees(item["vhost"])]


async def list_consumers(request: Request) -> Answer:
    return Answer(body=select(await _consumers(request, None), request.query))


async def list_consumers_in_vhost(request: Request) -> Answer:
    return Answer(body=select(await _consumers(request, request.vhost), request.query))
