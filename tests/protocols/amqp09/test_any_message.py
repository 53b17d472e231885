"""Random valid and invalid actions of class message in any order: the broker never fails, messages are neither lost nor
invented, and only checkpoints are left after all clients have disconnected."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.properties import decode_header
from tests.protocols.amqp09.support import Channel, connect
from tests.protocols.machine import QUEUES, TwoClients
from tests.protocols.support import Site
from tests.support.examples import examples

CHANNELS = (1, 1, 1, 2)
PIECE = bytes(range(256)) * 500
clients = st.integers(0, 1)
channels = st.sampled_from(CHANNELS)
references = st.sampled_from(("r", "s"))
# 0 is invalid.
mostly = st.integers(0, 30)
identifiers = st.sampled_from(("c", "d"))


class MessageMachine(TwoClients):
    """Three queues, two of them durable, and two clients with two channels each."""

    @initialize()
    def begin(self) -> None:
        site = Site()
        self.set_up(site, lambda: connect(site))

    def teardown(self) -> None:
        if not self.begun:
            return
        self.all_leave()
        for staged in self.site.broker.uploads.by_key.values():
            assert staged.checkpoints and staged.owner is None and not staged.taken
        assert self.site.broker.uploads.checkpoints.keys() == {
            (*staged.key[:3], name) for staged in self.site.broker.uploads.by_key.values() for name in staged.checkpoints
        }
        reader = self.site.channel()
        for name, queue in self.site.vhost.queues.items():
            assert queue.unacked == 0 and not queue.consumers
            found = []
            while (taken := reader.get(name)) is not None:
                found.append(int(decode_header(taken.header)[2]["message_id"]))
            assert len(found) == len(set(found)) and set(found) <= set(range(1, self.count + 1))
            assert queue.paging.memory() == 0

    def channel(self, which: int, number: int) -> Channel:
        client = self.clients[which]
        if client.is_open and number not in client.session.channels:
            client.session.resume_writing()
            client.run()
        channel = super().channel(which, number)
        assert isinstance(channel, Channel)
        return channel

    def messages(self, which: int, number: int) -> Any:
        """The broker's state for class message on a channel."""
        self.channel(which, number)
        return self.clients[which].session.channels[number].messages  # type: ignore[attr-defined]

    def reference(self, which: int, number: int, choice: int) -> str:
        """Return an open reference in most cases, if there is one."""
        return next(iter(self.messages(which, number).references), "r") if choice else "unknown"

    def new_id(self) -> str:
        self.count += 1
        return str(self.count)

    @rule(
        which=clients,
        number=channels,
        queue=st.sampled_from(QUEUES),
        persistent=st.booleans(),
        priority=st.sampled_from((0, 9)),
        immediate=st.sampled_from((False, False, True)),
        by_reference=st.booleans(),
        choice=mostly,
    )
    def transfer(
        self,
        which: int,
        number: int,
        queue: str,
        persistent: bool,
        priority: int,
        immediate: bool,
        by_reference: bool,
        choice: int,
    ) -> None:
        body = (1, self.reference(which, number, choice).encode()) if by_reference else (0, b"small")
        self.do(
            which,
            number,
            "message.transfer",
            routing_key=queue,
            delivery_mode=1 + persistent,
            priority=priority,
            immediate=immediate,
            message_id=self.new_id(),
            body=body,
        )

    @rule(which=clients, number=channels, reference=references)
    def open_reference(self, which: int, number: int, reference: str) -> None:
        self.do(which, number, "message.open", reference=reference)

    @rule(which=clients, number=channels, queue=st.sampled_from(QUEUES), times=st.integers(1, 5))
    def send_large(self, which: int, number: int, queue: str, times: int) -> None:
        self.do(which, number, "message.open", reference="large")
        self.do(which, number, "message.transfer", routing_key=queue, message_id=self.new_id(), body=(1, b"large"))
        for _ in range(times):
            self.do(which, number, "message.append", reference="large", bytes=PIECE)
        self.do(which, number, "message.close", reference="large")

    @rule(which=clients, number=channels, choice=mostly, large=st.booleans())
    def append(self, which: int, number: int, choice: int, large: bool) -> None:
        reference = self.reference(which, number, choice)
        self.do(which, number, "message.append", reference=reference, bytes=PIECE if large else b"x")

    @rule(which=clients, number=channels, choice=mostly, identifier=identifiers)
    def checkpoint(self, which: int, number: int, choice: int, identifier: str) -> None:
        reference = self.reference(which, number, choice)
        self.do(which, number, "message.checkpoint", reference=reference, identifier=identifier)

    @rule(which=clients, number=channels, reference=references, identifier=identifiers)
    def resume(self, which: int, number: int, reference: str, identifier: str) -> None:
        self.do(which, number, "message.resume", reference=reference, identifier=identifier)

    @rule(which=clients, number=channels, choice=mostly)
    def close_reference(self, which: int, number: int, choice: int) -> None:
        self.do(which, number, "message.close", reference=self.reference(which, number, choice))

    @rule(
        which=clients,
        number=channels,
        queue=st.sampled_from(QUEUES),
        no_ack=st.booleans(),
        no_local=st.booleans(),
        choice=mostly,
        destination=st.sampled_from(("", "", "a", "b")),
        resumes=st.booleans(),
    )
    def consume(
        self,
        which: int,
        number: int,
        queue: str,
        no_ack: bool,
        no_local: bool,
        choice: int,
        destination: str,
        resumes: bool,
    ) -> None:
        self.do(
            which,
            number,
            "message.consume",
            queue=queue,
            no_ack=no_ack and not resumes,
            no_local=no_local,
            exclusive=not choice,
            destination=destination,
            filter={"x-resume": resumes},
        )

    @rule(which=clients, number=channels, destination=st.sampled_from(("", "a", "b")))
    def cancel(self, which: int, number: int, destination: str) -> None:
        self.do(which, number, "message.cancel", destination=destination)

    @rule(which=clients, number=channels, queue=st.sampled_from(QUEUES), no_ack=st.booleans())
    def get(self, which: int, number: int, queue: str, no_ack: bool) -> None:
        self.do(which, number, "message.get", queue=queue, no_ack=no_ack)

    @rule(which=clients, number=channels, choice=mostly)
    def ok(self, which: int, number: int, choice: int) -> None:
        if self.messages(which, number).unanswered or not choice:
            self.do(which, number, "message.ok")

    @rule(which=clients, number=channels, choice=mostly)
    def reject(self, which: int, number: int, choice: int) -> None:
        if self.messages(which, number).unanswered or not choice:
            self.do(which, number, "message.reject", code=0, text="no")

    @rule(which=clients, number=channels, choice=mostly, value=st.sampled_from((0, 1, 128_000, 256_000)))
    def offset(self, which: int, number: int, choice: int, value: int) -> None:
        resuming = self.messages(which, number).resuming
        if resuming:
            value = min(value, resuming[0].message.size + (not choice))
        if resuming or not choice:
            self.do(which, number, "message.offset", value=value)

    @rule(which=clients, number=channels, requeue=st.booleans())
    def recover(self, which: int, number: int, requeue: bool) -> None:
        self.do(which, number, "message.recover", requeue=requeue)

    @rule(
        which=clients,
        number=channels,
        count=st.integers(0, 4),
        size=st.sampled_from((0, 0, 200_000)),
        everywhere=st.booleans(),
    )
    def qos(self, which: int, number: int, count: int, size: int, everywhere: bool) -> None:
        self.do(which, number, "message.qos", prefetch_count=count, prefetch_size=size, **{"global": everywhere})

    @rule(which=clients, number=channels, name=st.sampled_from(("tx.select", "tx.commit", "tx.rollback")))
    def transact(self, which: int, number: int, name: str) -> None:
        self.do(which, number, name)

    @rule(which=clients, number=channels)
    def close_channel(self, which: int, number: int) -> None:
        self.do(which, number, "channel.close", reply_code=200)

    @invariant()
    def counts_are_correct(self) -> None:
        if not self.begun:
            return
        held = dict.fromkeys(self.site.vhost.queues.values(), 0)
        for client in self.clients:
            for channel in client.session.channels.values():
                messages = channel.messages  # type: ignore[attr-defined]
                assert messages.incomplete == len(messages.in_flight())
                entries = channel.all_unacked()
                assert channel.unacked.gets == sum(entry.holder is None for entry in entries)
                for entry in entries:
                    held[entry.queue] += 1
                if channel.unacked.sized:
                    assert channel.unacked.size == sum(entry.message.size for entry in entries)
        for queue, count in held.items():
            assert queue.unacked == count, queue.name

    @invariant()
    def refusals_have_a_reason(self) -> None:
        if not self.begun:
            return
        for client in self.clients:
            closes = [
                item
                for item in client.received
                if isinstance(item, Method) and item.name.endswith(".close") and "reply_code" in item.arguments
            ]
            assert all(item.arguments["reply_code"] != 541 for item in closes)
            client.received = list(closes)


TestAnyMessage = MessageMachine.TestCase
TestAnyMessage.settings = examples(60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
