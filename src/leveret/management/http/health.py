"""Health checks: 200 with `"status": "ok"`, or 503 with the reason."""

from __future__ import annotations

from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request
from leveret.management.http.overview import endpoints
from leveret.management.http.request import Answer, Request

_NO_CACHE: Final = (("cache-control", "no-cache, no-store, must-revalidate"),)
# Names of protocols in paths, by the protocol of the listener.
_PROTOCOLS: Final = {
    "amqp": ("amqp", "amqp091", "amqp0-9-1", "amqp10", "amqp1.0"),
    "amqp/ssl": ("amqps", "amqp/ssl"),
    "http": ("http",),
    "https": ("https",),
}


def _ok(**facts: object) -> Answer:
    return Answer(body={"status": "ok", **facts}, headers=_NO_CACHE)


def _failed(reason: str, **facts: object) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **facts}, _NO_CACHE)


async def alarms(request: Request) -> Answer:
    """Check for alarms of memory and disk."""
    status = await request.control.call("status")
    alarm = status["alarm"]
    if not alarm:
        return _ok()
    found = [{"node": request.settings.node, "resource": name} for name in ("memory", "disk") if name in alarm]
    return _failed("There are alarms in effect in the cluster", alarms=found)


async def running(request: Request) -> Answer:
    """Check that the broker answers and its store works."""
    status: Row = await request.control.call("status")
    if status["log"]["state"] != "ok":
        return _failed(f"the store does not work: {status['log']['reason']}")
    return _ok()


async def port_listener(request: Request) -> Answer:
    if not request.path["port"].isdecimal():
        raise bad_request("invalid port; expected a number")
    wanted = int(request.path["port"])
    ports = await _listeners(request)
    if wanted in (port for _, port in ports):
        return _ok(port=wanted)
    return _failed("No active listener", missing=wanted, ports=[port for _, port in ports])


async def protocol_listener(request: Request) -> Answer:
    wanted = request.path["protocol"].lower()
    found = [protocol for protocol, _ in await _listeners(request)]
    if any(wanted in _PROTOCOLS.get(protocol, (protocol,)) for protocol in found):
        return _ok(protocol=request.path["protocol"])
    return _failed("No active listener", missing=request.path["protocol"], protocols=found)


async def _listeners(request: Request) -> list[tuple[str, int]]:
    status = await request.control.call("status")
    return [(protocol, port) for protocol, _, port in endpoints(request, status["listeners"])]
