"""Checks of the limits of the process, of the clock, and of the installed software."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import resource
import sys
import time
from collections.abc import Iterator
from typing import Final

from leveret._build import IS_CHECKOUT, build_info, installation
from leveret.cli.checkup.finding import ERROR, OK, WARNING, Finding
from leveret.cli.output import size
from leveret.config import Config
from leveret.node.composition import memory_limit, memory_size

# Files that the broker needs beside its connections.
_OTHER_FILES: Final = 200
# Connections below which a limit is suspicious if none is configured.
_FEW_CONNECTIONS: Final = 4000
# Memory that a broker needs.
_MIN_MEMORY: Final = 96 << 20
# The part of the memory above which the watermark leaves too little for everything else.
_MAX_SHARE: Final = 0.8
# The return value of ntp_adjtime if the clock is not synchronized, and more bytes than its argument has.
_UNSYNCHRONIZED: Final = 5
_TIMEX_BYTES: Final = 512
# The time after which a file in the data directory is from the future.
_FUTURE: Final = 60.0
# Vulnerabilities of modules of Python that the broker, its clients and its commands use, with the first patch release that
# fixes each, by minor version.
_VULNERABILITIES: Final = (
    ("CVE-2023-40217", "ssl", {11: 5}),
    ("CVE-2024-0397", "ssl", {11: 9, 12: 3}),
    ("CVE-2024-4032", "ipaddress", {11: 10, 12: 4}),
    ("CVE-2024-6923", "email", {11: 10, 12: 5}),
    ("CVE-2024-7592", "http.cookies", {11: 10, 12: 6}),
    ("CVE-2024-12254", "asyncio", {12: 9, 13: 2}),
    ("CVE-2025-0938", "urllib.parse", {11: 12, 12: 9, 13: 2}),
)


def check_files(config: Config) -> Iterator[Finding]:
    """Check the limit on open files, which the broker raises to the hard one, against the connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.limits.connections
    needed = wanted + _OTHER_FILES
    found = "unlimited open files" if hard == resource.RLIM_INFINITY else f"at most {hard} open files"
    unlimited = hard == resource.RLIM_INFINITY
    if wanted and not unlimited and hard < needed:
        change = (
            f"raise it (`ulimit -Hn {needed}`, or LimitNOFILE={needed} in the systemd unit), or lower 'limits.connections'"
        )
        yield Finding("open files", ERROR, found, f"{needed} for 'limits.connections' = {wanted}", change)
    elif not wanted and not unlimited and hard < _FEW_CONNECTIONS + _OTHER_FILES:
        change = "raise it (`ulimit -Hn 65536`, LimitNOFILE=65536 in the systemd unit), or set 'limits.connections'"
        yield Finding("open files", WARNING, found, f"{_FEW_CONNECTIONS + _OTHER_FILES} or more", change)
    else:
        yield Finding("open files", OK, found)


def check_memory(config: Config) -> Iterator[Finding]:
    """Check the memory watermark against the memory of the machine or the container."""
    watermark = config.limits.memory_high_watermark
    total, limit = memory_size(), memory_limit(watermark)
    found = f"publishers are blocked at {size(limit)} of {size(total)}"
    change = "set 'limits.memory_high_watermark', such as to 0.4"
    if not watermark:
        yield Finding("memory", WARNING, "no limit on memory", "a limit below the machine's memory", change)
    elif limit >= total:
        yield Finding("memory", ERROR, found, "a limit below the memory, which the system enforces by a kill", change)
    elif limit > _MAX_SHARE * total:
        yield Finding("memory", WARNING, found, f"at most {size(_MAX_SHARE * total)}", change)
    elif limit < _MIN_MEMORY * config.cluster.shards:
        least = size(_MIN_MEMORY * config.cluster.shards)
        yield Finding("memory", WARNING, found, f"at least {least}, or publishers may always be blocked", change)
    else:
        yield Finding("memory", OK, found)


def check_clock(config: Config) -> Iterator[Finding]:
    """Check that the clock is synchronized, and that it has not been set back since the last run."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    adjust = getattr(ctypes.CDLL(None), "ntp_adjtime", None)
    if adjust is not None and adjust(buffer) == _UNSYNCHRONIZED:
        change = "run a time service, such as chrony or systemd-timesyncd"
        yield Finding("clock", WARNING, "not synchronized", "a synchronized clock, for expiration and timestamps", change)
    else:
        yield Finding("clock", OK, "synchronized" if adjust is not None else "unknown synchronization")
    directory = config.server.data_path
    try:
        newest = max((entry.stat().st_mtime for entry in directory.iterdir()), default=0.0)
    except OSError:  # missing, or reported by the check of the data directory
        return
    if newest > time.time() + _FUTURE:
        ahead = round(newest - time.time())
        found = f"a file in {directory} is {ahead} s in the future"
        change = "set the clock; messages with an expiration may live that much longer"
        yield Finding("clock", WARNING, found, "a clock that has not been set back", change)


def check_software(config: Config) -> Iterator[Finding]:
    """Check the compiled modules, and the extras that the configuration needs."""
    build = build_info()
    python = f"Python {platform.python_version()}, {build}"
    if build.compiled:
        yield Finding("software", OK, python)
    else:
        change = "make compiled" if IS_CHECKOUT else "install a compiled wheel, or from source with a C compiler"
        yield Finding("software", WARNING, python, "compiled modules, which are several times faster", change)
    for extra, modules, setting, level in _needed(config):
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            found = f"{', '.join(missing)} not installed"
            yield Finding("extras", level, found, f"the extra for {setting}", installation(extra))


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> Finding:
    """Check that a version of Python has no known vulnerability in a module that matters here."""
    major, minor, patch = version
    open_ones = [
        (name, module, fixed[minor])
        for name, module, fixed in _VULNERABILITIES
        if major == 3 and patch < fixed.get(minor, 0)
    ]
    shown = ".".join(map(str, version))
    if not open_ones:
        return Finding("vulnerabilities", OK, f"none known of Python {shown}")
    found = f"Python {shown} has {', '.join(f'{name} ({module})' for name, module, _ in open_ones)}"
    change = "install a later patch release; ignore this if your distribution has fixed them in this version"
    return Finding("vulnerabilities", WARNING, found, f"3.{minor}.{max(fixed for *_, fixed in open_ones)} or later", change)


def _needed(config: Config) -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """Return the extra, some of its modules, the setting that needs it, and the level if it is missing."""
    if config.management.enabled:
        yield "management", ("starlette", "uvicorn", "h11"), "'management.enabled'", WARNING
    if config.streams.sealing:
        yield "segments", ("pyarrow",), "'streams.sealing'", WARNING
    if config.streams.iceberg:
        yield "iceberg", ("pyiceberg",), "'streams.iceberg'", ERROR
    if config.auth.oauth.resource_server_id:
        yield "oauth", ("httpx", "joserfc"), "'auth.oauth.resource_server_id'", ERROR
    if config.websocket.enabled:
        yield "websocket", ("h11", "wsproto"), "'websocket.enabled'", ERROR
    if config.storage.engine == "postgresql":
        yield "cluster", ("psycopg",), "'storage.engine' = 'postgresql'", ERROR
    if config.telemetry.otlp_endpoint is not None:
        yield "otel", ("opentelemetry",), "'telemetry.otlp_endpoint'", ERROR
