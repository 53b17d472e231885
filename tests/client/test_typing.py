"""What type checkers and readers of a program see of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import leveret
from tests.support.broker import ROOT

PROGRAM = '''
from __future__ import annotations

import leveret
from leveret import aio, sync
from leveret.client import Blocked, Event, NotFound, Parameters, parse_url


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
'''
MISTAKES = '''
import leveret

leveret.conect("amqp://")
with leveret.sync.connect() as connection:
    connection.chanel()
    connection.channel().publish(5)
'''


@pytest.mark.slow
def test_types_of_a_program(tmp_path: Path) -> None:
    """`mypy --strict` accepts a correct program and rejects an incorrect one."""
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "program.py", "mistakes.py"],
        cwd=tmp_path, env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        timeout=110, check=False)
    assert [line.rsplit("[", 1)[-1] for line in done.stdout.splitlines()[:-1]] == [
        "attr-defined]", "attr-defined]", "arg-type]"], done.stdout + done.stderr
    assert "program.py" not in done.stdout


def test_every_exported_name_exists() -> None:
    for name in leveret.__all__:
        assert getattr(leveret, name) is not None
        assert name in dir(leveret)
    assert leveret.client.NotFound.__mro__[2] is leveret.Error
    with pytest.raises(AttributeError, match="conect"):
        _ = leveret.conect  # type: ignore[attr-defined]
