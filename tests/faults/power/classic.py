"""Classic queues: the clients and the model of `tests.faults.crash`, with every change recorded in the journal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.faults.crash.model import Found, Group, Key, Model, Transaction
from tests.faults.crash.rounds import read_queues
from tests.faults.crash.workload import Workload as Clients
from tests.faults.power.workload import Event, Journal, Survivor, Workload
from tests.support.broker import Broker, LeveretProcess

# Maximum seconds between two bursts of a publisher; each recording draws one of these.
PAUSES = (0.01, 0.1, 0.3)


class JournaledModel(Model):
    """Records every call that changes it."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal = journal
        self.numbers: dict[Transaction, int] = {}

    def _of(self, *groups: Group) -> list[int]:
        return [self.groups.index(group) for group in groups]

    def published(self, groups: list[Group], key: Key, priority: int = 0, transaction: Transaction | None = None) -> None:
        number = None if transaction is None else self.numbers[transaction]
        self.journal("published", self._of(*groups), key, priority, number)
        super().published(groups, key, priority, transaction)

    def confirmed(self, groups: list[Group], key: Key) -> None:
        super().confirmed(groups, key)
        self.journal("confirmed", self._of(*groups), key)

    def delivered(self, group: Group, key: Key) -> str | None:
        wrong = super().delivered(group, key)
        self.journal("delivered", self._of(group), key)
        return wrong

    def acked(self, group: Group, key: Key) -> None:
        self.journal("acked", self._of(group), key)
        super().acked(group, key)

    def begin(self) -> Transaction:
        transaction = super().begin()
        self.numbers[transaction] = len(self.numbers)
        self.journal("begin")
        return transaction

    def acked_in(self, transaction: Transaction, group: Group, key: Key) -> None:
        self.journal("acked_in", self.numbers[transaction], self._of(group), key)
        super().acked_in(transaction, group, key)

    def ask(self, transaction: Transaction) -> None:
        self.journal("ask", self.numbers[transaction])
        super().ask(transaction)

    def committed(self, transaction: Transaction) -> None:
        super().committed(transaction)
        self.journal("committed", self.numbers[transaction])

    def forget(self, transaction: Transaction) -> None:
        super().forget(transaction)
        self.journal("forget", self.numbers[transaction])

    def check(self, found: dict[str, list[Found]], redelivery: bool) -> list[str]:
        wrong = super().check(found, redelivery)
        self.journal(
            "check",
            {queue: [(message.key, message.redelivered) for message in messages] for queue, messages in found.items()},
        )
        return wrong


def replay(model: Model, events: list[Event], unacked: Group) -> None:
    """Bring a new model to the state after the events.

    `unacked` is consumed without acknowledgements: its messages may be settled before their consumer has recorded them.
    """
    transactions: list[Transaction] = []
    for name, *values in events:
        if name == "check":
            model.check(
                {
                    queue: [
                        Found(queue, tuple(key) if key is not None else None, redelivered) for key, redelivered in messages
                    ]
                    for queue, messages in values[0].items()
                },
                True,
            )
        elif name == "begin":
            transactions.append(model.begin())
        elif name in ("ask", "committed", "forget"):
            getattr(model, name)(transactions[values[0]])
        elif name == "acked_in":
            model.acked_in(transactions[values[0]], model.groups[values[1][0]], tuple(values[2]))
        else:
            groups, key = [model.groups[number] for number in values[0]], tuple(values[1])
            if name == "published":
                # So that messages that are not published yet count as invented.
                model.highest[key[0]] = key[1]
                model.published(groups, key, values[2], None if values[3] is None else transactions[values[3]])
                if unacked in groups:
                    unacked.live[key].settling = True
            elif name == "confirmed":
                model.confirmed(groups, key)
            else:
                getattr(model, name)(groups[0], key)


class Classic(Workload):
    """Confirms, transactions, fan-out, priorities, dead letters, large bodies."""

    model: JournaledModel | None = None

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # At full speed commits are large and every point has thousands of messages; with pauses commits are small.
        self.pause = random.Random(seed).choice(PAUSES)

    def run(self, process: LeveretProcess, journal: Journal, started: Callable[[], None]) -> list[str]:
        if self.model is None:
            self.model = JournaledModel(journal)
            self.clients = Clients(process, self.model, self.seed, pause=self.pause)
            asyncio.run(self.clients.declare())
            journal("declared")
        else:
            wrong = asyncio.run(_check(process, self.model))
            if wrong:
                return wrong
        started()
        asyncio.run(self.clients.run())
        return self.clients.wrong

    def check(self, broker: Survivor, events: list[Event]) -> list[str]:
        if ["declared"] not in events:
            return []
        model = Model()
        clients = Clients(broker, model, self.seed)
        events.remove(["declared"])
        replay(model, events, clients.fan[0])
        return asyncio.run(_check(broker, model))


async def _check(broker: Broker, model: Model) -> list[str]:
    connection, readers = await read_queues(broker, model)
    wrong = model.check({reader.queue: reader.found for reader in readers}, True)
    for reader in readers:
        await reader.release([])
    await connection.close()
    return wrong
