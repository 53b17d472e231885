"""A broker in memory with an `Admin`, on the event loop of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

from leveret.broker.broker import Broker, VhostSettings
from leveret.broker.errors import NotFound
from leveret.broker.vhost import Vhost
from leveret.config import Config, VhostConfig
from leveret.management.admin import Admin
from leveret.management.descriptions import (
    ChannelInfo,
    ConnectionInfo,
    Histogram,
    LinkInfo,
    Performance,
    ProcessInfo,
    SessionInfo,
    SessionLinkInfo,
    ShovelInfo,
    TransactionInfo,
)
from leveret.management.json_values import ClientTable, encode_json
from leveret.management.managed import ManagedBroker
from leveret.management.operations.operation import Operator
from leveret.node.composition import maximum
from leveret.protocols.message_codec import MessageCodec
from leveret.security.patterns import compile_pattern
from leveret.security.users import UserStore
from leveret.storage.memory import MemoryLog


class FakeSession:
    """A connection with only an identity."""

    def __init__(self, number: int, user: str, vhost: str) -> None:
        self.number = number
        self.user = user
        self.vhost = vhost
        self.closed_with: str | None = None

    def describe(self) -> ConnectionInfo:
        return ConnectionInfo(
            number=self.number,
            name=f"client {self.number}",
            protocol="AMQP 0-9-1",
            user=self.user,
            vhost=self.vhost,
            state="running",
            channels=2,
            tls=False,
            bytes_in=1,
            bytes_out=2,
            client_properties=ClientTable({"product": b"\xff", "table": {"a": [1, None]}}),
            frame_max=4096,
            channel_max=3,
            heartbeat=0,
        )

    def describe_channels(self) -> list[ChannelInfo]:
        return [
            ChannelInfo(
                connection=self.number,
                vhost=self.vhost,
                user=self.user,
                number=number,
                consumers=0,
                unacked=unacked,
                prefetch=0,
                published=0,
                unconfirmed=0,
                mode="",
                state="running",
            )
            for number, unacked in ((1, 2), (2, 0))
        ]

    def describe_transactions(self) -> list[TransactionInfo]:
        return []

    def describe_sessions(self) -> list[SessionInfo]:
        return []

    def describe_links(self) -> list[SessionLinkInfo]:
        return []

    def shut_down(self, reason: str) -> None:
        self.closed_with = reason


class FakeLinks:
    """Links that record what is done to them."""

    def __init__(self) -> None:
        self.items: list[LinkInfo] = []
        self.done: list[tuple[str, ...]] = []

    def add(self, name: str, vhost: str = "/", container: str = "c") -> None:
        self.items.append(
            LinkInfo(
                vhost=vhost,
                user="guest",
                container=container,
                name=name,
                role="sender",
                address="",
                state="attached",
                connection=1,
                unsettled=0,
                durable="none",
                expiry="session-end",
                timeout=0,
                expires_at=0,
            )
        )

    def describe(self) -> list[LinkInfo]:
        return self.items

    def release(self, *identity: str) -> int:
        self.done.append(("release", *identity))
        return 3

    def delete(self, *identity: str) -> None:
        self.done.append(("delete", *identity))


class FakeShovels:
    """No shovels."""

    def describe(self) -> list[ShovelInfo]:
        return []

    def show(self, vhost: str, name: str) -> ShovelInfo:
        raise NotFound(name)

    def restart(self, vhost: str, name: str) -> None:
        raise NotFound(name)


class RecordingLog(MemoryLog):
    """Records the metadata."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata: dict[tuple[str, str], bytes] = {}

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        super().put(kind, key, value)
        if value is None:
            del self.metadata[kind, key]
        else:
            self.metadata[kind, key] = value


class Harness:
    def __init__(self, config: Config | None = None, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self.config = config or Config()
        self.log = RecordingLog()
        self.log.open()
        self.log.start(self.post)
        self.broker = Broker(self.log)
        self.broker.compile_pattern = compile_pattern
        self.users = UserStore(self.log.put, declared_in="leveret.toml")
        self.sessions: list[FakeSession] = []
        self.links = FakeLinks()
        self.managed = ManagedBroker(
            self.broker,
            self.users,
            sessions=lambda: self.sessions,
            config=self.config,
            config_name="leveret.toml",
            apply_vhost=self.apply_vhost,
            facts=self.facts,
            performance=lambda: Performance(turns=Histogram.of(None), loop_cpu=0.0, commits=Histogram.of(None)),
            alarm=lambda: "",
            links=self.links,
            shovels=FakeShovels(),
            codec=MessageCodec(self.broker),
        )
        self.admin = Admin(self.managed)
        for name, vhost in {"/": VhostConfig(), **self.config.vhosts}.items():
            self.apply_vhost(name, vhost)

    def post(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(call)

    def apply_vhost(self, name: str, vhost: VhostConfig) -> Vhost:
        return self.broker.add_vhost(
            name,
            VhostSettings(
                vhost.compat.strict,
                maximum(vhost.limits.max_queues),
                maximum(vhost.limits.max_connections),
                vhost.default_queue_type,
            ),
        )

    def facts(self) -> ProcessInfo:
        return ProcessInfo(
            version="1",
            build="pure",
            pid=1,
            uptime=0.0,
            listeners=[],
            data_dir="",
            config="",
            engine="memory",
            store="",
            memory=0,
            memory_limit=0,
            slow_turns=0,
            longest_turn=0.0,
        )

    def call(self, name: str, /, **arguments: Any) -> Any:
        """The reply of an operation as a client reads it, a list for an iterator."""
        result = self.loop.run_until_complete(self.admin.call(name, arguments, Operator()))
        found = [item for item in result if item is not None] if isinstance(result, Iterator) else result
        return json.loads(encode_json(found))

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
