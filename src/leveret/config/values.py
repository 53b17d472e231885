"""Readers for values with units: sizes, fractions of memory, durations, paths."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any, TypeAlias

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

# The limit of processor time of a control group (container): microseconds in each period, or `max`.
_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
# Maximum number of shards for `auto`.
MAX_AUTO_SHARDS = 16

# A setting's value, raw or converted by its reader. msgspec validates it against the model.
Setting: TypeAlias = Any


def _with_unit(text: str, units: dict[str, int] | dict[str, float]) -> float:
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(text)
    return float(match[1]) * units[match[2].lower()]


def read_size(value: Setting, base: str) -> Setting:
    """Read a size in bytes from a number or a string such as "128MiB". Raises `ValueError` for any other string."""
    return int(_with_unit(value, _UNITS)) if isinstance(value, str) else value


def read_watermark(value: Setting, base: str) -> Setting:
    """Read a fraction of up to 1.0 ("40%", 0.4), or a number of bytes above 1 ("2GiB"), as a float.

    Raises `ValueError` for any other string.
    """
    if not isinstance(value, str):
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    text = value.strip()
    watermark = float(text[:-1]) / 100 if text.endswith("%") else _with_unit(text, _UNITS)
    if text.endswith("%") and watermark > 1:
        raise ValueError(text)
    return watermark


def read_seconds(value: Setting, base: str) -> Setting:
    """Read seconds from a number or a string such as "500ms" or "30s". Raises `ValueError` for any other string."""
    return _with_unit(value, _DURATIONS) if isinstance(value, str) else value


def read_path(value: Setting, base: str) -> Setting:
    """Read an absolute path. A relative path is relative to `base`."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        return value
    if not value:
        raise ValueError(value)
    return os.path.abspath(os.path.join(base, os.path.expanduser(value)))


def read_path_or_url(value: Setting, base: str) -> Setting:
    """Read a URL, which stays unchanged, or a path as `read_path` does."""
    return value if isinstance(value, str) and "://" in value else read_path(value, base)


def read_http_url(value: Setting, base: str) -> Setting:
    """Read an HTTP URL without a slash at its end. Raises `ValueError` for any other string."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", value):
        raise ValueError(value)
    return value.rstrip("/")


def read_shards(value: Setting, base: str) -> Setting:
    """Read a number of processes, or "auto" for one per usable core. Raises `ValueError` for any other string."""
    if value == "auto":
        return min(usable_cores(), MAX_AUTO_SHARDS)
    return int(value) if isinstance(value, str) else value


def read_uris(value: Setting, base: str) -> Setting:
    """Read a list of URIs, or a single one."""
    return [value] if isinstance(value, str) else value


def read_table(value: Setting, base: str) -> Setting:
    """Read a table, or a JSON object. Raises `ValueError` for any other string."""
    return json.loads(value) if isinstance(value, str) else value


def usable_cores(limit: Path = _CPU_LIMIT) -> int:
    """Return the number of cores that this process may use: those of the machine, or of the container if it has fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = limit.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control group, or no limit
        return cores


READERS = {
    "size": read_size,
    "watermark": read_watermark,
    "seconds": read_seconds,
    "path": read_path,
    "path_or_url": read_path_or_url,
    "http_url": read_http_url,
    "shards": read_shards,
    "uris": read_uris,
    "table": read_table,
}
