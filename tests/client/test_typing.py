"""The package as type checkers see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import leveret
from tests.support.broker import ROOT

PROGRAM = """
from __future__ import annotations

import leveret
from leveret import aio, sync
from leveret.client import Blocked, Event, NotFound, Parameters, parse_url
from leveret.client.delivery import Delivery


async def program() -> None:
    async with leveret.connect(["amqp://a", "amqp://b"]) as connection, connection.channel(prefetch=3) as channel:
        typed: tuple[aio.Connection, aio.Channel] = connection, channel
        queue = await channel.declare_queue("q", durable=True)
        await channel.publish(b"x", queue, persistent=True)
        async with queue.consume(prefetch=3) as consumer:
            async for message in consumer:
                with message.process():
                    text: str = message.text()
        found: leveret.Message | None = await queue.get()
        async with channel.publisher(routing_key="q") as publisher:
            await publisher.publish("x")
        async for event in connection.events():
            match event:
                case Blocked(reason):
                    print(reason)
    try:
        await leveret.connect("amqp://")
    except (leveret.client.AuthenticationFailed, NotFound, leveret.Error) as error:
        code: int = error.reply_code


async def protocols(name: str) -> None:
    async with leveret.connect(protocol="0-9-1") as amqp091, amqp091.channel() as first:
        plain: tuple[aio.Connection, aio.Channel] = amqp091, first
    async with leveret.connect(protocol="0-9") as amqp09, amqp09.channel() as channel:
        old: tuple[aio.Amqp09Connection, aio.Amqp09Channel] = amqp09, channel
        await channel.send_file(b"x", "files")
    async with leveret.connect("amqp://", protocol="1.0") as amqp10, amqp10.session() as session:
        new: tuple[aio.Amqp10Connection, aio.Session] = amqp10, session
        async with session.sender("/queues/q") as sender, amqp10.transaction() as transaction:
            await sender.send("x", transaction=transaction, subject="s")
        async for delivery in session.consume("q", priority=1):
            delivery.accept()
        received: Delivery | None = await session.get("q")
    opened = await leveret.connect("amqp://", protocol=name)
    either: aio.Connection | aio.Amqp10Connection = opened
    base: aio.BaseChannel = await opened.open_channel()
    await base.publish("x", "q")


def protocols_in_threads(name: str) -> None:
    with sync.connect(protocol="0-9") as amqp09, amqp09.channel() as channel:
        old: tuple[sync.Amqp09Connection, sync.Amqp09Channel] = amqp09, channel
        channel.ping()
    with sync.connect(protocol="1.0") as amqp10, amqp10.session() as session:
        new: tuple[sync.Amqp10Connection, sync.Session] = amqp10, session
        receiver: sync.Receiver = session.receiver("/queues/q")
        delivery: Delivery = receiver.next()
    opened = sync.connect("amqp://", protocol=name)
    either: sync.Connection | sync.Amqp10Connection = opened
    base: sync.BaseChannel = opened.open_channel()


def seen(event: Event) -> None:
    print(event)


def threads() -> None:
    with sync.connect(on_event=seen) as connection, connection.channel() as channel:
        typed: tuple[sync.Connection, sync.Channel] = connection, channel
        for message in channel.consume("q"):
            message.ack()
    parameters: Parameters = parse_url("amqp://")
    with leveret.Broker() as broker:
        url: str = broker.url
"""
MISTAKES = """
import leveret

leveret.conect("amqp://")
with leveret.sync.connect() as connection:
    connection.chanel()
    connection.channel().publish(5)
    connection.channel().send_file("x")
    connection.session()
with leveret.sync.connect(protocol="1.0") as amqp10:
    amqp10.channel()
    amqp10.session().ack(1)
    amqp10.session().consume("q", exclusive=True)
with leveret.sync.connect(protocol="auto") as either:
    either.channel()
leveret.connect(heartbeets=5)
leveret.connect(verify=[])
"""


@pytest.mark.slow
def test_types_of_a_program(tmp_path: Path) -> None:
    """`mypy --strict` accepts a correct program and rejects an incorrect one."""
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "program.py", "mistakes.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert [line.rsplit("[", 1)[-1] for line in done.stdout.splitlines() if ": error:" in line] == [
        "attr-defined]",
        "attr-defined]",
        "arg-type]",
        "attr-defined]",
        "attr-defined]",
        "attr-defined]",
        "attr-defined]",
        "call-arg]",
        "union-attr]",
        "call-overload]",
        "call-overload]",
    ], done.stdout + done.stderr
    assert "program.py" not in done.stdout


def test_every_exported_name_exists() -> None:
    for name in leveret.__all__:
        assert getattr(leveret, name) is not None
        assert name in dir(leveret)
    assert leveret.client.NotFound.__mro__[2] is leveret.Error
    with pytest.raises(AttributeError, match="conect"):
        _ = leveret.conect  # type: ignore[attr-defined]
