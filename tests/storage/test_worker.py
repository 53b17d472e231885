"""The thread of an engine, with a store that is full."""

from __future__ import annotations

from typing import Any

from leveret.storage.batch import Commit
from leveret.storage.worker import StoreFull, Worker
from tests.storage.harness import Loop


class FullStore:
    """A store that has space at the third attempt, and does something before the second one."""

    def __init__(self) -> None:
        self.attempts = 0
        self.before_retry: Any = None

    def commit(self, commit: Commit) -> None:
        self.attempts += 1
        if self.attempts < 3:
            raise StoreFull("no space")

    def make_room(self) -> None:
        self.before_retry()

    def tidy(self) -> None:
        """Do nothing."""

    def maintain(self) -> bool:
        return False

    def space(self, pending: int) -> str:
        return ""


class Plan:
    """A load of three rows, which asks a question after the first one."""

    steps = 3

    def __init__(self, worker: Worker, order: list[str]) -> None:
        self.worker = worker
        self.order = order
        self.read = 0

    def read_next(self, reader: object) -> None:
        self.order.append("row")
        if not self.read:
            self.worker.ask(self.answer, lambda answer: None)

    def answer(self) -> bool:
        self.order.append("answer")
        return True


class ServedLog:
    """A log that notes the end of a load."""

    shard = 0
    pending_bytes = 0
    spool = None

    def __init__(self) -> None:
        self.is_loaded = self.is_returned = False

    def changed(self, state: str, reason: str) -> None:
        """Do nothing."""

    def returned(self) -> None:
        self.is_returned = True

    def loaded(self, plan: object) -> None:
        self.is_loaded = True


def test_loads_while_the_store_is_full_leave_the_thread_to_other_jobs() -> None:
    """Such as the signs of life of an owner."""
    loop, log, store, order = Loop(), ServedLog(), FullStore(), list[str]()
    worker = Worker(log, store, loop.post)  # type: ignore[arg-type]
    store.before_retry = lambda: worker.read(Plan(worker, order))  # type: ignore[arg-type]
    worker.submit(Commit(1))
    loop.run_until(lambda: log.is_loaded and log.is_returned)
    worker.close()
    assert order == ["row", "answer", "row", "row"]
