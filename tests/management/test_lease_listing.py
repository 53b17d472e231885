"""The list of leases is made in steps, and has an end."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.errors import ResourceError
from leveret.broker.leases import operations
from leveret.management.requests import leases
from leveret.management.requests.leases import OfQueue, list_leases
from leveret.management.requests.operation import Asked
from tests.broker.support import World


class Asking:
    """Somebody who may read everything."""

    number = 1
    user = "user"


class Users:
    def may(self, *_: Any) -> bool:
        return True


@pytest.fixture
def asked() -> Asked:
    world = World()
    for name in ("one", "two"):
        queue = world.queue(name, durable=True)
        for number in range(4):
            operations.acquire(queue, f"l{number}")
    asked = Asked(world.vhost, Asking(), Users())  # type: ignore[arg-type]
    asked.world = world  # type: ignore[attr-defined]
    return asked


def test_it_is_made_in_steps(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "STEP_WORK", 3 * leases.LEASE_WORK)
    found: list[Any] = []
    list_leases(asked, OfQueue()).when_resolved(found.append)
    assert not found
    operations.release(asked.vhost.queues["two"], "l3")
    asked.world.run()  # type: ignore[attr-defined]
    [answer] = found
    assert [(lease["queue"], lease["lease"]) for lease in answer["leases"]] == [
        *(("one", f"l{number}") for number in range(4)), *(("two", f"l{number}") for number in range(3))]


def test_too_many_are_refused_unless_a_queue_is_named(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_LISTED", 5)
    with pytest.raises(ResourceError, match="8 leases and batches exceed the maximum of 5 in a reply: name a queue"):
        list_leases(asked, OfQueue())
    found: list[Any] = []
    list_leases(asked, OfQueue(queue="one")).when_resolved(found.append)
    assert len(found[0]["leases"]) == 4
