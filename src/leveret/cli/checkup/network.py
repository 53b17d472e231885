"""Checks of the ports, of the default user, and of the running broker."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from leveret.cli.addresses import endpoint_of
from leveret.cli.checkup.finding import ERROR, OK, WARNING, Finding
from leveret.cli.output import Item
from leveret.config import Config
from leveret.management import control_client
from leveret.node.errors import StartFailed
from leveret.node.listening import addresses_of, bracketed

# Seconds for the running broker to answer.
_TIMEOUT: Final = 5.0
# Errors for an address that the machine lacks, which the broker skips if it has another one.
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def _listeners(config: Config) -> list[tuple[str, str, int]]:
    """Return the setting of the port, the host and the port of each listener."""
    management = config.management
    found = []
    if config.server.plain:
        found.append(("server.port", config.server.host, config.server.port))
    if config.tls.cert is not None:
        found.append(("tls.port", config.server.host if config.tls.host is None else config.tls.host, config.tls.port))
    if config.websocket.enabled:
        host = config.server.host if config.websocket.host is None else config.websocket.host
        found.append(("websocket.port", host, config.websocket.port))
    if management.enabled:
        found.append(("management.port", management.host, management.port))
        if management.metrics_enabled:
            found.append(("management.metrics_port", management.host, management.metrics_port))
    return found


def running_broker(config: Config) -> Item | None:
    """Return the status of the broker that runs in the data directory, or None."""
    try:
        found: Item = partial(control_client.call, config.server.data_path, timeout=_TIMEOUT)("status")
    except (control_client.NoBroker, control_client.CallFailed):
        return None
    return found


def check_ports(config: Config, running: Item | None) -> Iterator[Finding]:
    """Check that each port is free, or used by the running broker, and that this user may listen on it."""
    taken: dict[int, str] = {}
    for setting, host, port in _listeners(config):
        if not port:
            continue
        if port in taken:
            found = f"'{setting}' and '{taken[port]}' are both {port}"
            yield Finding("ports", ERROR, found, "different ports", f"change '{setting}'")
            continue
        taken[port] = setting
        name = f"{setting[:-4]}host"
        try:
            tried = [_try(address, port, setting, running) for address in addresses_of(host, name)]
        except StartFailed as error:
            yield Finding("ports", ERROR, str(error), "an address of this machine", f"change '{name}'")
            continue
        problems = [problem for problem in tried if problem is not None]
        yield from problems or [Finding("ports", OK, f"{port} ('{setting}') is free")]


def _try(address: str, port: int, setting: str, running: Item | None) -> Finding | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    where = f"{bracketed(address)}:{port} ('{setting}')"
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        if error.errno == errno.EACCES:
            change = f"change '{setting}', or grant CAP_NET_BIND_SERVICE"
            return Finding("ports", ERROR, f"this user may not listen on {where}", "an unprivileged port", change)
        if error.errno == errno.EADDRINUSE:
            users = _processes_at(port)
            if running is not None and running["pid"] in users:
                return Finding("ports", OK, f"{where} is used by the running broker (process {running['pid']})")
            who = ", ".join(f"process {pid} ({name})" for pid, name in users.items()) or "a process of another user"
            return Finding("ports", ERROR, f"{where} is used by {who}", "a free port", f"stop it, or change '{setting}'")
        change = f"change '{setting[:-4]}host'"
        return Finding("ports", ERROR, f"cannot listen on {where}: {error.strerror}", "an address of this machine", change)
    return None


def _processes_at(port: int) -> dict[int, str]:
    """Return the names of the processes that listen on a port, by id, if this user may see them."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(file) in inodes for file in (process / "fd").iterdir()):
                found[int(process.name)] = (process / "comm").read_text().strip()
        except OSError:  # it has ended, or is another user's
            continue
    return found


def check_guest(config: Config) -> Iterator[Finding]:
    """Check whether a user with the well-known password of guest can log in from other machines."""
    remote = [setting for setting, host, _ in _listeners(config) if not _is_loopback(host)]
    if not remote:
        yield Finding("default user", OK, "the broker listens on loopback addresses only")
    elif "guest" in config.users and config.users["guest"].password == "guest":
        found = "guest has the password guest, and other machines can connect"
        level = WARNING if "guest" in config.auth.loopback_users else ERROR
        yield Finding("default user", level, found, "a password that is not known", "change 'users.guest.password'")
    elif not config.users:
        found = "other machines can connect, but the configuration has no users; guest can log in from this machine only"
        yield Finding("default user", WARNING, found, "users", "add [users.NAME], or run `leveret users add NAME`")
    else:
        yield Finding("default user", OK, "the configuration has users")


def check_origins(config: Config) -> Iterator[Finding]:
    """Check whether every page in a browser may connect to the listener for WebSockets."""
    if config.websocket.enabled and "*" in config.websocket.allowed_origins:
        found = "every page that a browser shows may connect ('websocket.allowed_origins')"
        yield Finding("origins", WARNING, found, "the origins of your pages", "change 'websocket.allowed_origins'")


def _is_loopback(host: str) -> bool:
    try:
        addresses = addresses_of(host, "server.host")
        return bool(host) and all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)
    except StartFailed:  # reported by the check of ports
        return True


def check_broker(running: Item | None) -> Iterator[Finding]:
    """Check the alarm, the log and the listeners of the running broker."""
    if running is None:
        yield Finding("running broker", OK, "no broker runs in the data directory")
        return
    if running["alarm"]:
        change = "see `leveret status`; consumers that drain the queues, or the setting that the alarm names"
        yield Finding("running broker", ERROR, f"publishers are blocked: {running['alarm']}", "no alarm", change)
    if running["log"]["state"] != "ok":
        found = f"the log is {running['log']['state']}: {running['log']['reason']}"
        yield Finding("running broker", ERROR, found, "a log that accepts commits", "check the disk and the broker's log")
    for url in running["listeners"]:
        try:
            socket.create_connection(endpoint_of(url), _TIMEOUT).close()
        except OSError as error:
            found = f"{url} does not accept connections: {error}"
            yield Finding("running broker", ERROR, found, "connections", "check the firewall and the broker's log")
    yield Finding("running broker", OK, f"process {running['pid']} answers")
