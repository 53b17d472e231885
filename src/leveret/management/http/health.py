"""Health checks: 200 with `"status": "ok"`, or 503 with the reason."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Final

from leveret.broker.log import OK
from leveret.management.http.certificates import UNITS, expiring
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.overview import endpoints, metrics_endpoints
from leveret.management.http.request import Answer, Request

_NO_CACHE: Final = (("cache-control", "no-cache, no-store, must-revalidate"),)
# Names of AMQP with a version, as RabbitMQ's tools write them: amqp091, amqp0-9-1, amqp0.9.1, amqp10, amqp1-0.
_AMQP_VERSION: Final = re.compile(r"amqp(0[-._]?9([-._]?1)?|1[-._]?0)")
_AMQP: Final = ("amqp", "amqp/ssl")
_UNLIMITED: Final = "infinity"
# RabbitMQ's reason for checks of clusters that always pass on a single node.
_SINGLE_NODE: Final = "single node cluster"
_MAX_DIGITS: Final = 9
# Resources by the words in the reason of an alarm.
_RESOURCES: Final = {"memory": "memory", "disk": "disk", "store full": "disk", "store away": "disk"}


def _ok(**facts: object) -> Answer:
    return Answer(body={"status": "ok", **facts}, headers=_NO_CACHE)


def _failed(reason: str, **facts: object) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **facts}, _NO_CACHE)


async def _health(request: Request) -> Row:
    found: Row = await request.control.call("health")
    return found


async def alarms(request: Request) -> Answer:
    """Check for alarms of memory and disk."""
    alarm = (await _health(request))["alarm"]
    if not alarm:
        return _ok()
    node = request.settings.node
    found = [{"node": node, "resource": name} for word, name in _RESOURCES.items() if word in alarm]
    return _failed("There are alarms in effect in the cluster", alarms=found)


async def running(request: Request) -> Answer:
    """Check that the broker answers and its log accepts commits."""
    return _running(await _health(request))


async def in_service(request: Request) -> Answer:
    """Check that the broker is running, and is not a node that drains or has no link to the others."""
    health = await _health(request)
    if health["isolated"]:
        return _failed("this node has no link to another one, although others reach each other")
    return _in_service(health)


async def running_node(request: Request) -> Answer:
    """The same for a node by its name."""
    if request.path["node"] != request.settings.node:
        raise not_found()
    return await running(request)


def _running(health: Row) -> Answer:
    if health["state"] != OK:
        return _failed(f"the log is {health['state']}: {health['reason']}")
    return _ok()


def _in_service(health: Row) -> Answer:
    if health["draining"]:
        return _failed("the node is draining: it moves its shards away and takes no clients")
    return _running(health)


async def single_node(request: Request) -> Answer:
    """Answer a check of a cluster, which a single node passes."""
    found = await running(request)
    return _ok(reason=_SINGLE_NODE) if found.status == 200 else found


async def ready_to_serve_clients(request: Request) -> Answer:
    """Check that the broker is in service, has an AMQP listener, and accepts connections."""
    health = await _health(request)
    found = _in_service(health)
    if found.status != 200:
        return found
    if not any(protocol in _AMQP for protocol, _, _ in endpoints(request, health["listeners"])):
        return _failed("no active listeners for AMQP/AMQPS")
    limited = _connections(health)
    if limited.status != 200:
        return limited
    unindexed = health["unindexed_queues"]
    if unindexed:
        return _ok(
            reason=f"{unindexed} queues do not deliver yet: {100 * health['indexed']:.0f} % of the messages are indexed"
        )
    return _ok()


async def connection_limit(request: Request) -> Answer:
    """Check that `limits.connections` is not reached."""
    return _connections(await _health(request))


def _connections(health: Row) -> Answer:
    limit, connections = health["max_connections"], health["connections"]
    if limit and connections >= limit:
        return _failed("node connection limit is reached", limit=limit, connections=connections)
    return _ok(limit=limit or _UNLIMITED, connections=connections)


async def port_listener(request: Request) -> Answer:
    text = request.path["port"]
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise bad_request("invalid port; expected a number")
    wanted = int(text)
    ports = [port for _, _, port in await _listeners(request)]
    if wanted in ports:
        return _ok(port=wanted)
    return _failed("No active listener", missing=wanted, ports=ports)


async def protocol_listener(request: Request) -> Answer:
    wanted = request.path["protocol"].lower()
    found = [protocol for protocol, _, _ in await _listeners(request)]
    protocol = "amqp" if _AMQP_VERSION.fullmatch(wanted) else "amqp/ssl" if wanted == "amqps" else wanted
    if protocol in found:
        return _ok(protocol=protocol)
    return _failed("No active listener", missing=request.path["protocol"], protocols=found)


async def _listeners(request: Request) -> list[tuple[str, str, int]]:
    health = await _health(request)
    return [*endpoints(request, health["listeners"]), *metrics_endpoints(request)]


async def certificate_expiration(request: Request) -> Answer:
    """Check that no certificate of a listener expires within a time."""
    within = _duration(request.path["within"], request.path["unit"].lower())
    settings, expired = request.settings, []
    for protocol, host, port in await _listeners(request):
        cert = ca = None
        if protocol == "amqp/ssl":
            cert, ca = settings.amqp_tls_cert, settings.amqp_tls_ca
        elif protocol.startswith("https"):
            cert = settings.tls_cert
        ends, ends_of_ca = await asyncio.to_thread(_expiring, cert, ca, within)
        if ends or ends_of_ca:
            expired.append(
                {
                    "node": settings.node,
                    "protocol": protocol,
                    "interface": host,
                    "port": port,
                    "certfile": cert,
                    "cacertfile": ca,
                    "certfile_expires_on": ends,
                    "cacertfile_expires_on": ends_of_ca,
                }
            )
    return _failed("Certificates expiring", expired=expired) if expired else _ok()


def _expiring(cert: str | None, ca: str | None, within: timedelta) -> tuple[list[str], list[str]]:
    return expiring(cert, within), expiring(ca, within)


def _duration(text: str, unit: str) -> timedelta:
    """Return a time in the path. Raises `HttpError` (400)."""
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise bad_request("Invalid expiration value.")
    if unit not in UNITS:
        raise bad_request(f"Time unit not recognised. Supported units: {', '.join(UNITS)}.")
    return min(int(text), timedelta.max // UNITS[unit]) * UNITS[unit]


async def reset(request: Request) -> Answer:
    """Delete statistics: samples, rates and the history. Counters and messages stay."""
    if request.path.get("node", request.settings.node) != request.settings.node:
        raise not_found()
    await asyncio.gather(request.cache.reset(), request.history.clear())
    return Answer(204)
