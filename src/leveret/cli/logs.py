"""The log of `leveret serve` on standard error: one line of text or one JSON object per event."""

from __future__ import annotations

import json
import logging
import sys
import time

from leveret.cli.output import Item
from leveret.management.recent_log import RecentLog, escaped, fields_of, traceback_of


def _time(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"


def line_of(milliseconds: int, level: str, name: str, message: str) -> str:
    """Return a record as a line, with its line breaks escaped. The time is Unix time."""
    if not message.isprintable():
        message = "".join(
            char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in message
        )
    return f"{_time(milliseconds)} {level:<7} {name}: {message}"


class TextFormatter(logging.Formatter):
    """Formatter for lines such as `2026-01-31T12:00:00.000Z info  leveret.server: text`. Those of a shard name it."""

    def __init__(self, shard: int | None = None) -> None:
        super().__init__()
        self._prefix = "" if shard is None else f"shard {shard}: "

    def format(self, record: logging.LogRecord) -> str:
        message = f"{self._prefix}{record.getMessage()}"
        line = line_of(int(record.created * 1000), record.levelname.lower(), record.name, message)
        return f"{line}\n{traceback_of(record)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Formatter for JSON objects.

    They have time, level, logger and message; for an exception its traceback; and if the message is about a connection, a
    vhost, a user or a client, the number of the connection, the names, and the address of the client as `peer`. Those of a
    shard have its number.
    """

    def __init__(self, shard: int | None = None) -> None:
        super().__init__()
        self._shard: Item = {} if shard is None else {"shard": shard}

    def format(self, record: logging.LogRecord) -> str:
        event: Item = {
            "time": _time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event |= self._shard
        event |= fields_of(record)
        if record.exc_info:
            event["exception"] = traceback_of(record)
        return json.dumps({name: escaped(value) if isinstance(value, str) else value for name, value in event.items()})


def set_up_logging(level: str, format: str, recent: RecentLog | None = None, shard: int | None = None) -> None:
    """Configure logging for this process.

    Args:
        level: `server.log_level`.
        format: `server.log_format`.
        recent: The handler that keeps the latest records, if they can be read.
        shard: The number of the shard that this process is, if it is one.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(shard) if format == "json" else TextFormatter(shard))
    logging.captureWarnings(True)
    logging.basicConfig(level=level.upper(), handlers=[handler] if recent is None else [handler, recent], force=True)
    # asyncio's debug messages do not help operators.
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.raiseExceptions = False
