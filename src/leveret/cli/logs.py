"""The log of `leveret serve` on standard error: one line of text or one JSON object per event."""

from __future__ import annotations

import json
import logging
import sys
import time

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


class JsonFormatter(logging.Formatter):
    """Formatter for JSON objects with time, level, logger, message and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        event: Item = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _text(record.getMessage()),
        }
        if record.exc_info:
            event["exception"] = _text(self.formatException(record.exc_info))
        return json.dumps(event)


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
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # asyncio's debug messages do not help operators.
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.raiseExceptions = False
