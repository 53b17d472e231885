"""Shared by the tests of class tunnel of 0-9: distributions with handlers, and requests to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.protocols.amqp09.support import Channel

TUNNEL = 110


def install(directory: Path, name: str, source: str, **handlers: str) -> None:
    """Create a distribution with one module of its name, and its functions as handlers: `data_name="function"`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.py").write_text(source, encoding="utf-8")
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"{data_name} = {name}:{function}" for data_name, function in handlers.items()]
    (info / "entry_points.txt").write_text("\n".join(["[leveret.tunnel]", *lines, ""]), encoding="utf-8")


def content(body: bytes, **properties: Any) -> bytes:
    """Return the content header of a request."""
    return encode_header(TUNNEL, len(body), properties, QPID, V0_9)


def send(channel: Channel, body: bytes = b"", meta_data: dict[str, Any] | None = None, **properties: Any) -> None:
    """Send a request, which reaches the broker with the next `run`, `flush` or call."""
    channel.client.engine.send_content(
        channel.number, "tunnel.request", {"meta_data": meta_data or {}}, content(body, **properties), body
    )
