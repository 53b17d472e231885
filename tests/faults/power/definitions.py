"""Definitions: operators add and delete queues, exchanges, bindings, users, permissions and vhosts. Replies are durable."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from leveret.management.control_client import call
from tests.faults.power.workload import Event, Journal, Survivor, Workload, in_threads
from tests.support.broker import LeveretProcess

CLIENTS = 3
NAMES = 4
KINDS = ("queues", "exchanges", "vhosts", "users")
Things = frozenset[tuple[str, ...]]


def changed(things: Things, operation: str, name: str, more: list[str]) -> Things:
    """Return the definitions after an operation. A definition is its kind, its name, and its other properties."""
    kind, verb = operation.split(".")
    if kind in ("bindings", "permissions"):
        thing = (kind, name, *more[:2])
        rest = things - {found for found in things if found[:3] == thing[:3]}
        return rest if verb == "delete" else rest | {(kind, name, *more)}
    if verb != "delete":
        return things | {(kind, name, *more)}
    concerned = {"queues": "bindings", "exchanges": "bindings", "users": "permissions", "vhosts": ""}[kind]
    return frozenset(
        found for found in things if not (found[:2] == (kind, name) or (found[0] == concerned and name in found[1:3]))
    )


class Definitions(Workload):
    """Several operators, each with its own names."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.things: list[Things] = [frozenset()] * CLIENTS
        self.chance = [random.Random(seed + client) for client in range(CLIENTS)]

    def run(self, process: LeveretProcess, journal: Journal, started: Callable[[], None]) -> list[str]:
        # Operations in flight when the broker died may have taken effect.
        found = observed(lambda name, **arguments: call(process.data_dir, name, arguments))
        for client in range(CLIENTS):
            self.things[client] = found[client]
            journal("there", client, sorted(found[client]))
        started()
        return in_threads(journal, *(partial(self._operator, client, process, journal) for client in range(CLIENTS)))

    def _operator(self, client: int, process: LeveretProcess, journal: Journal) -> None:
        while True:
            operation, name, more, arguments = self._choose(client)
            journal("asked", client, operation, name, more)
            call(process.data_dir, operation, arguments)
            journal("done", client, operation, name, more)
            self.things[client] = changed(self.things[client], operation, name, more)

    def _choose(self, client: int) -> tuple[str, str, list[str], dict[str, Any]]:
        """Choose an operation that the broker accepts. Returns its name, and name, properties and arguments of the
        definition.
        """
        chance, things = self.chance[client], self.things[client]
        there = {kind: sorted(found[1] for found in things if found[0] == kind) for kind in KINDS}
        while True:
            kind = chance.choice((*KINDS, "bindings", "bindings", "permissions"))
            if kind == "bindings":
                if not (there["queues"] and there["exchanges"]):
                    continue
                source, queue = chance.choice(there["exchanges"]), chance.choice(there["queues"])
                verb = "delete" if ("bindings", source, queue, "key") in things else "add"
                return (
                    f"bindings.{verb}",
                    source,
                    [queue, "key"],
                    {"source": source, "destination": queue, "routing_key": "key"},
                )
            if kind == "permissions":
                if not there["users"]:
                    continue
                user = chance.choice(there["users"])
                if any(found[:2] == ("permissions", user) for found in things) and chance.random() < 0.3:
                    return "permissions.delete", user, ["/"], {"user": user, "vhost": "/"}
                pattern = f"^{chance.randint(0, 999)}"
                return (
                    "permissions.set",
                    user,
                    ["/", pattern],
                    {"user": user, "vhost": "/", "configure": pattern, "write": "", "read": ""},
                )
            name = f"c{client}.{kind}.{chance.randrange(NAMES)}"
            if name in there[kind]:
                return f"{kind}.delete", name, [], {"name": name}
            more = [chance.choice(("direct", "topic"))] if kind == "exchanges" else []
            return f"{kind}.add", name, more, {"name": name} | ({"type": more[0]} if more else {})

    def check(self, broker: Survivor, events: list[Event]) -> list[str]:
        states: list[Things] = [frozenset()] * CLIENTS
        asked: list[Things | None] = [None] * CLIENTS
        begun = False
        for kind, client, *values in events:
            begun = True
            if kind == "there":
                states[client], asked[client] = frozenset(map(tuple, values[0])), None
            elif kind == "asked":
                asked[client] = changed(states[client], *values)
            else:
                states[client], asked[client] = changed(states[client], *values), None
        if not begun:
            return []
        wrong = []
        for client, found in enumerate(observed(broker.call)):
            if found not in (states[client], asked[client]):
                wrong.append(
                    f"client {client}: lost {sorted(states[client] - found)}, invented"
                    f" {sorted(found - states[client])} (a change was under way: {asked[client] is not None})"
                )
        return wrong


def observed(ask: Callable[..., Iterable[dict[str, Any]]]) -> list[Things]:
    """Return the definitions that exist, by client."""
    things: list[tuple[str, ...]] = []
    for kind in KINDS:
        things += [(kind, item["name"], *([item["type"]] if kind == "exchanges" else [])) for item in ask(f"{kind}.list")]
    things += [("bindings", item["source"], item["destination"], item["routing_key"]) for item in ask("bindings.list")]
    things += [("permissions", item["user"], item["vhost"], item["configure"]) for item in ask("permissions.list")]
    return [frozenset(thing for thing in things if thing[1].startswith(f"c{client}.")) for client in range(CLIENTS)]
