"""Random valid and invalid client actions in any order: the broker never fails, messages are neither lost nor invented,
and no state is left after all clients have disconnected."""

from __future__ import annotations

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from leveret.wire.amqp0.commands import ContentMethod, Deliver, Method
from tests.protocols.machine import QUEUES, TwoClients
from tests.protocols.support import Site, bytes_of
from tests.support.examples import examples

CHANNELS = (1, 2)
clients = st.integers(0, 1)
channels = st.sampled_from(CHANNELS)
tags = st.integers(0, 12)


class SessionMachine(TwoClients):
    """Three queues, two of them durable, and two clients with two channels each."""

    @initialize(strict=st.booleans(), qos_spec=st.booleans())
    def begin(self, strict: bool, qos_spec: bool) -> None:
        site = Site(strict=strict, qos_spec=qos_spec)
        self.set_up(site, site.connect)
        self.sent: set[bytes] = set()

    def teardown(self) -> None:
        if not self.begun:
            return
        self.all_leave()
        for queue in self.site.vhost.queues.values():
            assert queue.unacked == 0
            assert not queue.consumers
        reader = self.site.channel()
        for name in QUEUES:
            bodies = reader.bodies(name)
            assert len(bodies) == len(set(bodies)) and set(bodies) <= self.sent
            assert self.site.vhost.queues[name].paging.memory() == 0

    @rule(
        which=clients,
        number=channels,
        queue=st.sampled_from(QUEUES),
        persistent=st.booleans(),
        priority=st.sampled_from((None, 0, 9)),
        mandatory=st.booleans(),
        immediate=st.sampled_from((False, False, True)),
        times=st.integers(1, 8),
    )
    def publish(
        self,
        which: int,
        number: int,
        queue: str,
        persistent: bool,
        priority: int | None,
        mandatory: bool,
        immediate: bool,
        times: int,
    ) -> None:
        channel = self.channel(which, number)
        for _ in range(times):
            self.count += 1
            body = b"%d" % self.count
            self.sent.add(body)
            channel.publish(
                queue,
                body,
                mandatory=mandatory,
                immediate=immediate,
                delivery_mode=2 if persistent else 1,
                priority=priority,
            )
        self.settle()

    @rule(
        which=clients,
        number=channels,
        queue=st.sampled_from(QUEUES),
        no_ack=st.booleans(),
        no_local=st.booleans(),
        exclusive=st.booleans(),
        tag=st.sampled_from(("", "a", "b")),
        priority=st.integers(-1, 1),
    )
    def consume(
        self, which: int, number: int, queue: str, no_ack: bool, no_local: bool, exclusive: bool, tag: str, priority: int
    ) -> None:
        self.do(
            which,
            number,
            "basic.consume",
            queue=queue,
            no_ack=no_ack,
            no_local=no_local,
            exclusive=exclusive,
            consumer_tag=tag,
            arguments={"x-priority": priority},
        )

    @rule(which=clients, number=channels, tag=st.sampled_from(("a", "b")))
    def cancel(self, which: int, number: int, tag: str) -> None:
        self.do(which, number, "basic.cancel", consumer_tag=tag)

    @rule(which=clients, number=channels, queue=st.sampled_from(QUEUES), no_ack=st.booleans())
    def get(self, which: int, number: int, queue: str, no_ack: bool) -> None:
        self.do(which, number, "basic.get", queue=queue, no_ack=no_ack)

    @rule(which=clients, number=channels, tag=tags, multiple=st.booleans())
    def ack(self, which: int, number: int, tag: int, multiple: bool) -> None:
        self.channel(which, number).ack(tag, multiple)
        self.settle()

    @rule(which=clients, number=channels, tag=tags, multiple=st.booleans(), requeue=st.booleans())
    def nack(self, which: int, number: int, tag: int, multiple: bool, requeue: bool) -> None:
        self.channel(which, number).nack(tag, multiple, requeue)
        self.settle()

    @rule(which=clients, number=channels, requeue=st.booleans())
    def recover(self, which: int, number: int, requeue: bool) -> None:
        self.do(which, number, "basic.recover", requeue=requeue)

    @rule(
        which=clients, number=channels, count=st.integers(0, 4), size=st.sampled_from((0, 0, 3)), everywhere=st.booleans()
    )
    def qos(self, which: int, number: int, count: int, size: int, everywhere: bool) -> None:
        self.do(which, number, "basic.qos", prefetch_count=count, prefetch_size=size, **{"global": everywhere})

    @rule(which=clients, number=channels, active=st.booleans())
    def flow(self, which: int, number: int, active: bool) -> None:
        self.do(which, number, "channel.flow", active=active)

    @rule(which=clients, number=channels, name=st.sampled_from(("tx.select", "tx.commit", "tx.rollback", "confirm.select")))
    def transact(self, which: int, number: int, name: str) -> None:
        self.do(which, number, name)

    @rule(which=clients, number=channels, queue=st.sampled_from(QUEUES))
    def purge(self, which: int, number: int, queue: str) -> None:
        self.do(which, number, "queue.purge", queue=queue)

    @rule(which=clients, number=channels)
    def close_channel(self, which: int, number: int) -> None:
        self.channel(which, number)
        self.clients[which].engine.send(number, "channel.close", {"reply_code": 200})
        self.settle()

    @invariant()
    def counts_are_correct(self) -> None:
        if not self.begun:
            return
        held = dict.fromkeys(self.site.vhost.queues.values(), 0)
        for client in self.clients:
            for channel in client.session.channels.values():
                consumers = dict.fromkeys(channel.consumers.by_tag.values(), 0)
                entries = channel.all_unacked()
                for entry in entries:
                    held[entry.queue] += 1
                    if entry.holder in consumers:
                        consumers[entry.holder] += 1
                for consumer, count in consumers.items():
                    assert consumer.unacked == count
                if channel.unacked.sized:
                    assert channel.unacked.size == sum(entry.message.size for entry in entries)
        for queue, count in held.items():
            assert queue.unacked == count, queue.name

    @invariant()
    def each_message_was_published(self) -> None:
        if not self.begun:
            return
        for client in self.clients:
            for item in client.received:
                if isinstance(item, (Deliver, ContentMethod)):
                    assert bytes_of(item.body) in self.sent
                elif isinstance(item, Method) and item.name.endswith(".close"):
                    assert item.arguments["reply_code"] != 541
            client.received = [
                item for item in client.received if isinstance(item, Method) and item.name.endswith(".close")
            ]


TestAnySession = SessionMachine.TestCase
TestAnySession.settings = examples(100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
