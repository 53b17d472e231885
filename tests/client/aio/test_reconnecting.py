"""Recovery after a lost connection: restored and lost state."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from leveret.client._async.channel import Channel
from leveret.client.errors import (
    ChannelClosed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    Error,
    NotFound,
    Timeout,
    TransactionLost,
)
from leveret.client.events import (
    Closed,
    Connected,
    Disconnected,
    Event,
    Reconnecting,
    Recovered,
    RecoveryFailed,
)
from tests.client.conftest import Connect
from tests.client.fake import Peer, fake_server
from tests.support.broker import Broker, LeveretProcess, free_port
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy

QUICK: dict[str, Any] = {"reconnect_delay": 0.02, "reconnect_max_delay": 0.2}


async def until_gone(channel: Channel, queue: str) -> None:
    """Wait until the queue is deleted with its last consumer, once the server has noticed the lost connection."""
    while True:
        try:
            probe = await channel.connection.channel()
            await probe.declare_queue(queue, passive=True)
            await probe.close()
        except NotFound:
            return
        await asyncio.sleep(0.005)


class Watch:
    """Records the events of a connection."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.seen.append(event)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.seen]

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.seen)

    async def recovered(self, times: int = 1) -> None:
        await wait_until_async(lambda: self.count(Connected) > times)


async def test_events_in_order(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, **QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)
    await channel.consume(name).start()
    later = connection.events()

    async def follow() -> list[Event]:
        return [event async for event in later]

    following = asyncio.create_task(follow())
    proxy.cut()
    await watch.recovered()
    assert watch.kinds == ["Connected", "Disconnected", "Reconnecting", "Recovered", "Connected"]
    first, lost, trying, recovered, again = watch.seen
    assert isinstance(first, Connected) and (first.first, first.attempt, first.port) == (True, 1, proxy.port)
    assert isinstance(lost, Disconnected) and type(lost.error) is ConnectionLost
    assert isinstance(trying, Reconnecting) and (trying.attempt, trying.host) == (1, "127.0.0.1")
    assert 0 < trying.delay <= 0.02
    assert recovered == Recovered(1, 1, 0)
    assert isinstance(again, Connected) and not again.first
    await connection.close()
    stream = await following
    assert stream == watch.seen[1:] and stream[-1] == Closed(None)
    assert [event async for event in connection.events()] == [Closed(None)]


async def test_everything_is_restored(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, **QUICK)
    channel = await connection.channel()
    topic = await channel.declare_exchange(f"{name}.topic", "topic", auto_delete=True)
    inner = await channel.declare_exchange(f"{name}.inner", "fanout", auto_delete=True)
    await inner.bind(topic, "#")
    queue = await channel.declare_queue(exclusive=True)
    kept = await channel.declare_queue(f"{name}.kept", exclusive=True, arguments={"x-max-length": 2})
    gone = await channel.declare_queue(f"{name}.gone", exclusive=True)
    await queue.bind(inner)
    await kept.bind(topic, "a.*")
    await kept.bind(topic, "b.*")
    await kept.unbind(topic, "b.*")
    await gone.delete()
    limited = await connection.channel(prefetch=2)
    own = limited.consume(queue, no_ack=False, consumer_tag="mine")
    await own.start()
    before = queue.name
    for round in range(1, 4):
        proxy.cut()
        await watch.recovered(round)
        assert queue.name != before and own.queue == queue.name and own.tag == "mine"
        before = queue.name
        for key in ("a.b", "b.c", "a.c"):
            await topic.publish(b"%d %s" % (round, key.encode()), key)
        got = [await anext(own) for _ in range(2)]
        assert [message.body for message in got] == [b"%d a.b" % round, b"%d b.c" % round]
        # The channel's prefetch applies again.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(own)
        for message in got:
            message.ack()
        (await anext(own)).ack()
        assert (await channel.declare_queue(kept.name, passive=True)).message_count == 2
        await kept.purge()
        assert not any(isinstance(event, RecoveryFailed) for event in watch.seen)
    with pytest.raises(NotFound):
        await (await connection.channel()).declare_queue(gone.name, passive=True)


async def test_pending_calls_fail_at_once(dial: Connect, proxy: Proxy, name: str) -> None:
    connection = await dial(proxy.url(), reconnect_delay=100, reconnect_max_delay=100)
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name, auto_delete=True)
    proxy.flowing.clear()
    calls = [
        asyncio.ensure_future(call)
        for call in (
            channel.declare_queue(name),
            channel.get(name),
            other.purge_queue(name),
            channel.consume(name).start(),
            connection.update_secret("guest"),
            channel.qos(5),
            channel.request(b"x", name),
            other.declare_exchange(name),
        )
    ]
    await asyncio.sleep(0.05)
    begun = time.monotonic()
    proxy.cut()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - begun < 60
    assert [type(result) for result in results] == [ConnectionLost] * len(calls)
    proxy.flowing.set()


async def test_new_calls_wait_for_the_next_connection(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, **QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)
    proxy.flowing.clear()
    proxy.cut()
    await wait_until_async(lambda: watch.count(Disconnected))
    assert not connection.is_open and not channel.is_open and not connection.is_closed
    calls = asyncio.gather(
        channel.declare_queue(name, exclusive=True),
        channel.publish(b"x", name),
        channel.get(name),
        channel.qos(1),
        connection.channel(),
    )
    await asyncio.sleep(0)
    proxy.flowing.set()
    queue, _, message, _, opened = await calls
    assert queue.name == name and opened.is_open
    assert message is None or message.body == b"x"


async def test_calls_time_out(dial: Connect, proxy: Proxy, name: str) -> None:
    connection = await dial(proxy.url(), reconnect_delay=0.01, reconnect_max_delay=0.05)
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)
    connection.core.parameters = replace(connection.parameters, timeout=0.2)
    proxy.stop()
    await wait_until_async(lambda: not connection.is_open)
    for call in (channel.get(name), channel.publish(b"x", name), connection.channel()._open()):
        with pytest.raises(Timeout):
            await call
    await connection.close()


async def test_settling_messages_of_the_lost_connection(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, **QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name)
    for number in range(6):
        await channel.publish(b"%d" % number, name)
    consumer = channel.consume(name, prefetch=4)
    held = [await anext(consumer) for _ in range(2)]
    by_get = await channel.get(name)
    assert by_get is not None
    proxy.cut()
    await watch.recovered()
    # They are redelivered; settling the old ones has no effect.
    for message in (*held, by_get):
        message.ack()
    seen = []
    for _ in range(6):
        message = await anext(consumer)
        seen.append(message.body)
        message.ack()
    assert sorted(seen) == [b"%d" % number for number in range(6)]
    await consumer.cancel()
    assert await channel.delete_queue(name) == 0


async def test_settling_and_cancelling_while_disconnected(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, **QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name)
    await channel.publish(b"x", name)
    first, second = channel.consume(name), channel.consume(name)
    message = await anext(first)
    await second.start()
    closed = await connection.channel()
    proxy.flowing.clear()
    proxy.cut()
    await wait_until_async(lambda: watch.count(Disconnected))
    message.ack()
    await first.cancel()
    await closed.close()
    # Neither has waited for the next connection.
    assert watch.count(Connected) == 1
    with pytest.raises(StopAsyncIteration):
        await anext(first)
    proxy.flowing.set()
    await watch.recovered()
    assert isinstance(watch.seen[-2], Recovered) and (watch.seen[-2].channels, watch.seen[-2].consumers) == (1, 1)
    assert (await anext(second)).redelivered
    assert (await channel.declare_queue(name, passive=True)).consumer_count == 1
    with pytest.raises(ChannelClosed):
        await closed.get(name)
    await channel.delete_queue(name)


async def test_unconfirmed_publishes_resume(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, **QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name)
    proxy.flowing.clear()
    publishes = [asyncio.ensure_future(channel.publish(b"%d" % number, name)) for number in range(20)]
    await asyncio.sleep(0)
    publisher = channel.publisher(routing_key=name, window=50)
    for number in range(20, 40):
        await publisher.publish(b"%d" % number)
    # Publishes whose callers have timed out are not repeated.
    given_up = [asyncio.ensure_future(channel.publish(b"given up", name)) for _ in range(3)]
    await asyncio.sleep(0.02)
    for task in given_up:
        task.cancel()
    # The broker has not received it.
    for pair in proxy.half_open():
        pair.client.close()
    proxy.flowing.set()
    await asyncio.gather(*publishes)
    await publisher.flush()
    assert any(event == Recovered(1, 0, 40) for event in watch.seen)
    bodies = [(await channel.get(name, no_ack=True)).body for _ in range(40)]  # type: ignore[union-attr]
    assert bodies == [b"%d" % number for number in range(40)]
    assert await channel.delete_queue(name) == 0


async def test_transactions(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, **QUICK)
    channel = await connection.channel(transactional=True)
    await channel.declare_queue(name)
    with pytest.raises(TransactionLost):
        async with channel.transaction():
            await channel.publish(b"lost", name)
            await channel.declare_queue(name)
            proxy.cut()
            await watch.recovered()
            await channel.publish(b"half of it", name)
    assert (await channel.declare_queue(name, passive=True)).message_count == 0
    # The block's error is raised, and the next transaction is a new one.
    with pytest.raises(ZeroDivisionError):
        async with channel.transaction():
            await channel.publish(b"lost", name)
            proxy.flowing.clear()
            proxy.cut()
            await wait_until_async(lambda: not channel.is_open)
            raise ZeroDivisionError
    proxy.flowing.set()
    await watch.recovered(2)
    async with channel.transaction():
        await channel.publish(b"kept", name)
    assert (await channel.get(name)).body == b"kept"  # type: ignore[union-attr]
    await channel.tx_rollback()
    await channel.delete_queue(name)


async def test_requests_fail_and_later_ones_work(dial: Connect, proxy: Proxy, connect: Connect, name: str) -> None:
    server = await (await connect()).channel()
    await server.declare_queue(name, exclusive=True)

    async def serve() -> None:
        async for message in server.consume(name, no_ack=True):
            if message.body != b"silence":
                await message.respond(message.body)

    serving = asyncio.create_task(serve())
    connection = await dial(proxy.url(), **QUICK)
    channel = await connection.channel()
    assert (await channel.request(b"1", name)).body == b"1"
    for _ in range(3):
        asking = [asyncio.ensure_future(channel.request(b"silence", name)) for _ in range(3)]
        await asyncio.sleep(0.02)
        proxy.cut()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost] * 3
        answers = await asyncio.gather(*(channel.request(b"%d" % number, name) for number in range(5)))
        assert [answer.body for answer in answers] == [b"%d" % number for number in range(5)]
    serving.cancel()
    await asyncio.wait([serving])


async def test_half_open_connection_is_detected(dial: Connect, proxy: Proxy, name: str) -> None:
    """Exclusive queues, too: the server keeps them for the old connection until it notices the loss."""
    watch = Watch()
    connection = await dial(proxy.url(), heartbeat=1, on_event=watch, reconnect_delay=0.2, timeout=60)
    channel = await connection.channel()
    queue = await channel.declare_queue(name, exclusive=True)
    consumer = channel.consume(name)
    await consumer.start()
    asking = asyncio.ensure_future(channel.get(name))
    await asking
    stalled = proxy.half_open()
    asking = asyncio.ensure_future(channel.get(name))
    publishing = asyncio.ensure_future(channel.publish(b"x", name))
    with pytest.raises(ConnectionLost, match="no data from the server"):
        await asking
    await publishing
    assert (await anext(consumer)).body == b"x" and queue.name == name
    assert not any(isinstance(event, RecoveryFailed) for event in watch.seen)
    for pair in stalled:
        pair.cut()


async def test_heartbeats_keep_an_idle_connection(dial: Connect, proxy: Proxy) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), heartbeat=1, on_event=watch)
    await asyncio.sleep(3.2)
    assert watch.kinds == ["Connected"] and connection.is_open
    # A program that computes for a while does not mean that the server is dead.
    time.sleep(2.5)
    await asyncio.sleep(0.3)
    assert connection.is_open or watch.count(Disconnected) == 1


async def test_reconnect_disabled(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), reconnect=False, on_event=watch)
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)
    consumer = await channel.consume(name).start()
    waiting = asyncio.ensure_future(anext(consumer))
    proxy.flowing.clear()
    publishing = asyncio.ensure_future(channel.publish(b"x", name))
    await asyncio.sleep(0.02)
    proxy.cut()
    for task in (waiting, publishing):
        with pytest.raises(ConnectionLost):
            await task
    for call in (
        channel.get(name),
        channel.publish(b"x", name),
        connection.channel()._open(),
        anext(consumer),
        connection.wait_closed(),
    ):
        with pytest.raises(ConnectionLost):
            await call
    assert connection.is_closed
    assert watch.kinds == ["Connected", "Closed"]


async def test_reconnect_attempts(dial: Connect, proxy: Proxy, name: str) -> None:
    watch = Watch()
    connection = await dial(proxy.url(), reconnect_attempts=3, on_event=watch, **QUICK)
    channel = await connection.channel()
    waiting = asyncio.ensure_future(channel.declare_queue(name))
    await waiting
    proxy.stop()
    await wait_until_async(lambda: not connection.is_open)
    publishing = asyncio.ensure_future(channel.publish(b"x", name))
    with pytest.raises(ConnectionFailed):
        await connection.wait_closed()
    with pytest.raises(Error):
        await publishing
    assert watch.kinds == ["Connected", "Disconnected", *["Reconnecting"] * 3, "Closed"]
    numbers = [event.attempt for event in watch.seen if isinstance(event, Reconnecting)]
    assert numbers == [1, 2, 3]


async def test_close_while_reconnecting(dial: Connect, proxy: Proxy, name: str) -> None:
    for delay in (0.0, 0.05):
        watch = Watch()
        connection = await dial(proxy.url(), on_event=watch, reconnect_delay=0.03)
        channel = await connection.channel()
        proxy.cut()
        await wait_until_async(lambda watch=watch: watch.count(Disconnected))  # type: ignore[misc]
        await asyncio.sleep(delay)
        waiting = asyncio.ensure_future(channel.declare_queue(name, auto_delete=True))
        await asyncio.sleep(0)
        await connection.close()
        result = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert not isinstance(result, BaseException) or isinstance(result, ConnectionClosed)
        assert connection.is_closed


async def test_failover_to_the_next_host(dial: Connect, server: Broker) -> None:
    """The first host is down for good: the second takes over, with its own topology."""
    watch = Watch()
    with Proxy(server) as first, Proxy(server) as second:
        connection = await dial([first.url(), second.url(), f"amqp://127.0.0.1:{free_port()}"], on_event=watch, **QUICK)
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        assert connection.parameters.port == first.port
        first.stop()
        await watch.recovered()
        assert connection.parameters.port == second.port
        await channel.publish(b"x", queue.name)
        assert (await queue.get()).body == b"x"  # type: ignore[union-attr]
        tried = [event.port for event in watch.seen if isinstance(event, Reconnecting)]
        assert tried == [first.port, second.port]
        await connection.close()


async def test_recovery_failures(dial: Connect, connect: Connect, proxy: Proxy, name: str) -> None:
    """A failure affects only what depends on it."""
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, **QUICK)
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name, auto_delete=True)
    await channel.declare_exchange(f"{name}.e")
    good = await other.declare_queue(exclusive=True)
    mine = await other.consume(good).start()
    broken = await channel.consume(name).start()
    waiting = asyncio.ensure_future(anext(broken))
    await asyncio.sleep(0)
    proxy.flowing.clear()
    proxy.cut()
    await wait_until_async(lambda: watch.count(Disconnected))
    # Another connection has meanwhile declared a queue and an exchange of these names with another type.
    stranger = await (await connect()).channel()
    await until_gone(stranger, name)
    await stranger.delete_exchange(f"{name}.e")
    await stranger.declare_exchange(f"{name}.e", "topic")
    await stranger.declare_queue(name, exclusive=True)
    proxy.flowing.set()
    await watch.recovered()
    failed = [event.what for event in watch.seen if isinstance(event, RecoveryFailed)]
    assert failed[:2] == [f"exchange '{name}.e'", f"queue '{name}'"] and f"queue '{name}'" in failed[2]
    with pytest.raises(ChannelClosed):
        await waiting
    assert not channel.is_open
    await other.publish(b"x", good.name)
    assert (await anext(mine)).body == b"x"
    await stranger.delete_exchange(f"{name}.e")


async def test_recovery_with_all_channel_numbers_in_use(dial: Connect, proxy: Proxy, name: str) -> None:
    """Recovery needs a channel for the topology, and borrows one."""
    watch = Watch()
    connection = await dial(proxy.url(), channel_max=4, on_event=watch, **QUICK)
    channels = [await connection.channel() for _ in range(4)]
    with pytest.raises(ConnectionClosed, match="channel_max"):
        await connection.channel()
    queue = await channels[0].declare_queue(exclusive=True)
    consumer = await channels[0].consume(queue).start()
    for round in range(1, 4):
        proxy.cut()
        await watch.recovered(round)
        assert [event.channels for event in watch.seen if isinstance(event, Recovered)][-1] == 4
        await asyncio.gather(*(channel.publish(b"x", queue.name) for channel in channels))
        for _ in channels:
            (await anext(consumer)).ack()


async def test_cuts_during_recovery(dial: Connect, proxy: Proxy, name: str) -> None:
    """The first attempts are cut after a number of bytes; the last one restores everything."""
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, reconnect_delay=0.005, reconnect_max_delay=0.02)
    channel = await connection.channel(prefetch=10)
    closed = await connection.channel()
    exchange = await channel.declare_exchange(name, "fanout", auto_delete=True)
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange)
    await closed.close()
    consumers = [await channel.consume(queue).start() for _ in range(3)]
    for cut_after in range(60, 1500, 60):
        proxy.cut_after = cut_after
        accepted = proxy.accepted
        proxy.cut()
        await wait_until_async(lambda accepted=accepted: proxy.accepted >= accepted + 1)  # type: ignore[misc]
        proxy.cut_after = None
        before = watch.count(Connected)
        await asyncio.sleep(0.01)
        proxy.cut()
        await wait_until_async(lambda before=before: watch.count(Connected) > before or connection.is_open)  # type: ignore[misc]
        await exchange.publish(b"%d" % cut_after)
        done, pending = await asyncio.wait(
            [asyncio.ensure_future(anext(consumer)) for consumer in consumers],
            return_when=asyncio.FIRST_COMPLETED,
            timeout=60,
        )
        assert done, "no consumer consumes"
        for task in done:
            message = task.result()
            assert message.body == b"%d" % cut_after
            message.ack()
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    await wait_until_async(lambda: connection.is_open)
    assert len(connection.core.channels) == 1
    assert (await channel.declare_queue(queue.name, passive=True)).consumer_count == 3


async def test_close_and_cancel_during_recovery(dial: Connect, proxy: Proxy, name: str) -> None:
    """At each step of the recovery, closed objects stay closed, and their numbers can be reused."""
    watch = Watch()
    connection = await dial(proxy.url(), on_event=watch, reconnect_delay=0.001)
    keeper = await connection.channel()
    queue = await keeper.declare_queue(exclusive=True)
    kept = await keeper.consume(queue).start()
    for steps in range(0, 90, 3):
        channel = await connection.channel(prefetch=3)
        own = await channel.declare_queue(exclusive=True)
        consumers = [await channel.consume(own).start() for _ in range(2)]
        times = watch.count(Connected)
        proxy.cut()
        while connection.is_open:
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0.0001)
        await consumers[0].cancel()
        await channel.close()
        again = await connection.channel()
        await watch.recovered(times)
        assert len(connection.core.channels) == 2
        await again.publish(b"%d" % steps, queue.name)
        message = await anext(kept)
        assert message.body == b"%d" % steps
        message.ack()
        assert (await keeper.declare_queue(own.name, passive=True)).consumer_count == 0
        await again.delete_queue(own)
        await again.close()
    assert not any(isinstance(event, RecoveryFailed) for event in watch.seen)


@pytest.mark.parametrize("code", [320, 541])
async def test_retryable_reply_codes(dial: Connect, code: int) -> None:
    sockets = 0

    async def script(peer: Peer) -> None:
        nonlocal sockets
        sockets += 1
        await peer.handshake()
        if sockets == 1:
            await asyncio.sleep(0.02)
            peer.send(commands.Connection.Close(code, "come back", 0, 0))
        await peer.closing()

    watch = Watch()
    async with fake_server(script) as url:
        connection = await dial(url, on_event=watch, **QUICK)
        await watch.recovered()
        lost = watch.seen[1]
        assert isinstance(lost, Disconnected) and lost.error.reply_code == code
        await connection.close()


@pytest.mark.parametrize("code", [501, 502, 503, 504, 505, 506, 530, 540, 402])
async def test_fatal_reply_codes(dial: Connect, code: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.handshake()
        await asyncio.sleep(0.02)
        peer.send(commands.Connection.Close(code, "no", 50, 10))
        await peer.closing()

    async with fake_server(script) as url:
        connection = await dial(url)
        with pytest.raises(ConnectionClosed) as caught:
            await connection.wait_closed()
        assert (caught.value.reply_code, caught.value.method, caught.value.reply_text) == (code, "queue.declare", "no")
        assert type(caught.value) is ConnectionClosed


async def test_fatal_reply_code_during_recovery(dial: Connect) -> None:
    """A reconnect would meet the same error."""
    sockets = 0

    async def script(peer: Peer) -> None:
        nonlocal sockets
        sockets += 1
        await peer.handshake()
        if sockets == 1:
            await peer.channel()
            return
        await peer.expect("Channel.Open")
        peer.send(commands.Connection.Close(530, "no more", 20, 10))
        await peer.closing()

    async with fake_server(script) as url:
        connection = await dial(url, **QUICK)
        await connection.channel()
        with pytest.raises(ConnectionClosed) as caught:
            await connection.wait_closed()
        assert caught.value.reply_code == 530 and sockets == 2


async def test_broker_restart(dial: Connect, tmp_path: Path, name: str) -> None:
    """Durable queues keep confirmed messages; everything else is declared again."""
    watch = Watch()
    process = LeveretProcess(tmp_path).start()
    try:
        connection = await dial(process.url(), on_event=watch, **QUICK)
        channel = await connection.channel()
        await channel.declare_queue(name, durable=True)
        transient = await channel.declare_queue(exclusive=True)
        await channel.publish(b"kept", name, persistent=True)
        for round, end in enumerate((process.stop, process.kill), 1):
            await asyncio.to_thread(end)
            await wait_until_async(lambda: not connection.is_open)
            publishing = asyncio.ensure_future(channel.publish(b"while it was away", name, persistent=True))
            await asyncio.to_thread(process.start)
            await watch.recovered(round)
            await publishing
            await channel.publish(b"x", transient.name)
            assert (await transient.get()).body == b"x"  # type: ignore[union-attr]
        assert await channel.delete_queue(name) == 3
        await connection.close()
    finally:
        await asyncio.to_thread(process.stop)
