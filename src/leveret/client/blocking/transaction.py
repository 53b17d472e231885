"""A transaction of AMQP 1.0, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.core.amqp1.transactions import TransactionCore
from leveret.client.errors import Error
from leveret.client.timeouts import DEFAULT, Limit

if TYPE_CHECKING:
    from leveret.client.blocking.connection import Connection


class Transaction:
    """What is sent and settled with it (`Sender.send(..., transaction=tx)`, `Delivery.accept(tx)`) takes place when it is
    committed. To be entered with `with`, which commits it, or rolls it back when the block raises."""

    def __init__(self, connection: Connection, core: TransactionCore) -> None:
        self._driver = connection.driver
        self._core = core

    @property
    def core(self) -> TransactionCore:
        """Its engine."""
        return self._core

    @property
    def is_open(self) -> bool:
        """It was neither committed nor rolled back."""
        return self._core.txn_id is not None

    def commit(self, timeout: Limit = DEFAULT) -> None:
        """Raises `TransactionLost` where the server has rolled it back."""
        try:
            self._driver.run(self._core.discharge(False), timeout, "a commit")
        finally:
            self._close()

    def rollback(self, timeout: Limit = DEFAULT) -> None:
        """Nothing of it takes place; deliveries that were settled in it can be settled again."""
        try:
            self._driver.run(self._core.discharge(True), timeout, "a roll-back")
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._driver.run(self._core.close(), DEFAULT, "end")
        except Error:
            pass  # it went with its connection

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is None:
            if self.is_open or self._core.lost:
                self.commit()
        elif self.is_open:
            try:
                self.rollback()
            except Error:
                pass  # the connection has ended, and the transaction with it
