"""The clients of the crash checker. Each ends silently when its connection ends."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

from pamqp import commands

from tests.faults.crash.model import Group, Key, Model, Transaction, make_body, read_body
from tests.support.broker import Broker
from tests.support.peers.async_amqp091 import Channel, Closed, Connection, Delivery

PERSISTENT = 2
PREFETCH = 64

BROKEN = (Closed, OSError, EOFError, asyncio.IncompleteReadError)
"""Errors that a client sees when the broker is killed."""


class Workload:
    """Queues, publishers and consumers of one run; the queues stay over all its rounds.

    pause  seconds that a publisher waits at most between two bursts
    """

    def __init__(self, broker: Broker, model: Model, seed: int, prefix: str = "crash", pause: float = 0.01) -> None:
        self.broker = broker
        self.pause = pause
        self.model = model
        self.random = random.Random(seed)
        self.prefix = prefix
        self.wrong: list[str] = []
        self.stopping = False
        group = model.group
        name = self.name
        self.plain = group(name("plain"))
        self.fan = [group(name(f"fan.{index}")) for index in range(3)]
        self.source = group(name("source"))
        self.results = group(name("results"))
        self.other_results = group(name("results.other"))
        self.large = group(name("large"))
        self.priority = group(name("priority"), prioritized=True)
        self.dropped = group(name("short"), name("short.dead"), moves_oldest=True)
        self.expiring = group(name("expiring"), name("expiring.dead"), any_order=True)
        self.refused = group(name("refused"), name("refused.dead"))

    def name(self, suffix: str) -> str:
        return f"{self.prefix}.{suffix}"

    async def declare(self) -> None:
        """Declare everything durable, the same in every round."""
        connection = await Connection.open(self.broker)
        channel = await connection.channel()
        dead = {"x-dead-letter-exchange": ""}
        arguments: dict[str, dict[str, Any]] = {
            self.name("priority"): {"x-max-priority": 5},
            self.name("short"): dead | {"x-dead-letter-routing-key": self.name("short.dead"), "x-max-length": 40},
            self.name("expiring"): dead | {"x-dead-letter-routing-key": self.name("expiring.dead"), "x-message-ttl": 80},
            self.name("refused"): dead | {"x-dead-letter-routing-key": self.name("refused.dead")},
        }
        for group in self.model.groups:
            for queue in group.queues:
                await channel.declare(queue, durable=True, arguments=arguments.get(queue, {}))
        await channel.call(commands.Exchange.Declare(exchange=self.name("fan"), exchange_type="fanout", durable=True))
        for group in self.fan:
            await channel.call(commands.Queue.Bind(queue=group.queues[0], exchange=self.name("fan"), routing_key=""))
        await connection.close()

    async def run(self) -> None:
        """Run all clients until the broker dies or `stopping` is set."""
        small, fan = (0, 300), (0, 2000)
        clients = [
            self.publisher(1, "", self.name("plain"), [self.plain], small),
            self.publisher(2, "", self.name("plain"), [self.plain], (0, 5000)),
            self.publisher(3, self.name("fan"), "", self.fan, fan),
            self.publisher(4, "", self.name("source"), [self.source], small),
            self.publisher(5, "", self.name("large"), [self.large], (200_000, 3_000_000), window=2),
            self.publisher(6, "", self.name("priority"), [self.priority], small, priorities=5),
            self.publisher(7, "", self.name("short"), [self.dropped], small),
            self.publisher(8, "", self.name("expiring"), [self.expiring], small),
            self.publisher(9, "", self.name("refused"), [self.refused], small),
            self.transactional_publisher(10),
            self.consumer(self.plain),
            self.consumer(self.fan[0], no_ack=True),
            self.consumer(self.fan[1]),
            self.consumer(self.large),
            self.consumer(self.priority),
            self.consumer(self.refused, refuse=True),
            self.transformer(11),
            self.transformer(12),
        ]
        await asyncio.gather(*(self._guard(client) for client in clients))

    async def _guard(self, client: Any) -> None:
        try:
            await client
        except BROKEN as error:
            if isinstance(error, Closed) and (error.scope == "fault" or error.code not in (0, 320)):
                self.wrong.append(f"a client was refused: {error}")
        except TimeoutError:
            self.wrong.append("the broker did not answer within the call timeout")

    async def _connect(self) -> tuple[Connection, Channel]:
        connection = await Connection.open(self.broker)
        return connection, await connection.channel()

    async def publisher(
        self,
        number: int,
        exchange: str,
        routing_key: str,
        groups: list[Group],
        sizes: tuple[int, int],
        window: int = 200,
        priorities: int = 0,
    ) -> None:
        """Publishes with confirms, one window at a time."""
        connection, channel = await self._connect()
        await channel.call(commands.Confirm.Select())
        waiting: deque[tuple[int, Key]] = deque()
        moved = asyncio.Event()

        def on_confirm(tag: int, multiple: bool, ack: bool) -> None:
            if not ack:
                self.wrong.append(f"publisher {number} got a nack")
                return
            if multiple:
                while waiting and waiting[0][0] <= tag:
                    self.model.confirmed(groups, waiting.popleft()[1])
            else:
                for position, (waiting_tag, key) in enumerate(waiting):
                    if waiting_tag == tag:
                        del waiting[position]
                        self.model.confirmed(groups, key)
                        break
                else:
                    self.wrong.append(f"publisher {number} got a confirm for {tag}, which is not pending")
            moved.set()

        channel.on_confirm = on_confirm
        while not self.stopping:
            for _ in range(self.random.randint(1, 20)):
                if len(waiting) >= window:
                    break
                key = self.model.next(number)
                priority = self.random.randint(0, priorities) if priorities else 0
                self.model.published(groups, key, priority)
                properties = commands.Basic.Properties(delivery_mode=PERSISTENT, priority=priority if priorities else None)
                body = make_body(key, self.random.randint(*sizes))
                waiting.append((channel.publish(exchange, routing_key, body, properties), key))
            await connection.drain()
            if len(waiting) >= window:
                moved.clear()
                await self._or_end(connection, moved)
            else:
                await self._rest()
            if connection.closed is not None:
                raise connection.closed
        while waiting:
            moved.clear()
            await self._or_end(connection, moved)
        await connection.close()

    async def _rest(self) -> None:
        """Pause between two bursts."""
        await asyncio.sleep(self.random.random() * self.pause if self.random.random() < 0.3 else 0)

    async def _or_end(self, connection: Connection, event: asyncio.Event) -> None:
        """Wait for the event. Raises Closed if the connection ends first."""
        while not event.is_set():
            if connection.closed is not None:
                raise connection.closed
            try:
                await asyncio.wait_for(event.wait(), 0.05)
            except TimeoutError:
                continue

    async def transactional_publisher(self, number: int) -> None:
        """Publishes to two queues in one transaction; some are rolled back."""
        connection, channel = await self._connect()
        await channel.call(commands.Tx.Select())
        while not self.stopping:
            transaction = self.model.begin()
            for _ in range(self.random.randint(1, 30)):
                group = self.random.choice((self.results, self.other_results))
                self._publish_in(transaction, channel, number, group)
            if self.random.random() < 0.1:
                await channel.call(commands.Tx.Rollback())
                self.model.forget(transaction)
            else:
                self.model.ask(transaction)
                await channel.call(commands.Tx.Commit())
                self.model.committed(transaction)
            await self._rest()
        await connection.close()

    def _publish_in(self, transaction: Transaction, channel: Channel, number: int, group: Group) -> None:
        key = self.model.next(number)
        self.model.published([group], key, transaction=transaction)
        channel.publish(
            "",
            group.queues[0],
            make_body(key, self.random.randint(0, 1000)),
            commands.Basic.Properties(delivery_mode=PERSISTENT),
        )

    async def consumer(self, group: Group, no_ack: bool = False, refuse: bool = False) -> None:
        """Consumes messages and settles most of them in any order: one by one, many at once, or by requeueing."""
        connection, channel = await self._connect()
        unsettled: dict[int, Key] = {}

        def on_delivery(delivery: Delivery) -> None:
            key = read_body(delivery.body)
            if key is None:
                self.wrong.append(f"damaged: a delivery from {group.queues[0]}")
                return
            problem = self.model.delivered(group, key)
            if problem:
                self.wrong.append(problem)
            elif no_ack:
                self.model.acked(group, key)
            else:
                unsettled[delivery.method.delivery_tag] = key

        channel.on_delivery = on_delivery
        await channel.call(commands.Basic.Qos(prefetch_count=PREFETCH))
        await channel.consume(group.queues[0], no_ack=no_ack)
        while not self.stopping:
            await asyncio.sleep(self.random.random() * 0.02)
            if connection.closed is not None:
                raise connection.closed
            tags = sorted(unsettled)
            if not tags:
                continue
            dice = self.random.random()
            if refuse:
                # The message stays in the group: it moves to the dead-letter queue.
                for tag in tags:
                    channel.send(commands.Basic.Reject(tag, requeue=False))
                    del unsettled[tag]
            elif dice < 0.4:
                last = self.random.choice(tags)
                for tag in tags:
                    if tag <= last:
                        self.model.acked(group, unsettled.pop(tag))
                channel.ack(last, multiple=True)
            elif dice < 0.8:
                for tag in self.random.sample(tags, max(1, len(tags) // 2)):
                    self.model.acked(group, unsettled.pop(tag))
                    channel.ack(tag)
            else:
                tag = self.random.choice(tags)
                del unsettled[tag]
                channel.send(commands.Basic.Nack(tag, multiple=False, requeue=True))
        await connection.close()

    async def transformer(self, number: int) -> None:
        """Consumes from one queue and publishes results to another, both in one transaction."""
        connection, channel = await self._connect()
        arrived: deque[tuple[int, Key]] = deque()

        def on_delivery(delivery: Delivery) -> None:
            key = read_body(delivery.body)
            if key is None:
                self.wrong.append(f"damaged: a delivery from {self.source.queues[0]}")
                return
            problem = self.model.delivered(self.source, key)
            if problem:
                self.wrong.append(problem)
            else:
                arrived.append((delivery.method.delivery_tag, key))

        channel.on_delivery = on_delivery
        await channel.call(commands.Basic.Qos(prefetch_count=PREFETCH))
        await channel.call(commands.Tx.Select())
        await channel.consume(self.source.queues[0])
        while not self.stopping:
            if not arrived:
                await asyncio.sleep(0.005)
                if connection.closed is not None:
                    raise connection.closed
                continue
            transaction = self.model.begin()
            for _ in range(min(len(arrived), self.random.randint(1, 20))):
                tag, key = arrived.popleft()
                channel.ack(tag)
                self.model.acked_in(transaction, self.source, key)
                self._publish_in(transaction, channel, number, self.results)
            self.model.ask(transaction)
            await channel.call(commands.Tx.Commit())
            self.model.committed(transaction)
        await connection.close()
