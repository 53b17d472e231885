"""The log of `leveret serve` on standard error: one line of text or one JSON object per event."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

from leveret.cli.output import Item


def _time(created: float) -> str:
    seconds, milliseconds = divmod(int(created * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}Z"


class TextFormatter(logging.Formatter):
    """Formatter for lines such as `2026-01-31T12:00:00.000Z info  leveret.server: text`. Line breaks are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if not message.isprintable():
            message = "".join(
                char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in message
            )
        line = f"{_time(record.created)} {record.levelname.lower():<7} {record.name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


# Fields of JSON log messages that calls give as `extra`, or arguments of messages as `log_fields`.
_FIELDS: Final = ("connection", "vhost", "user", "peer")


class JsonFormatter(logging.Formatter):
    """Formatter for JSON objects.

    They have time, level, logger and message; for an exception its traceback; and if the message is about a connection, a
    vhost, a user or a client, the number of the connection, the names, and the address of the client as `peer`.
    """

    def format(self, record: logging.LogRecord) -> str:
        event: Item = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for argument in record.args if isinstance(record.args, tuple) else ():
            event |= getattr(argument, "log_fields", {})
        event |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _text(value) if isinstance(value, str) else value for name, value in event.items()})


def _text(text: str) -> str:
    """Escape bytes that are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def set_up_logging(level: str, format: str) -> None:
    """Configure logging for this process. `level` and `format` are `server.log_level` and `server.log_format`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.captureWarnings(True)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # asyncio's debug messages do not help operators.
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.raiseExceptions = False
