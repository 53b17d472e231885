"""A transaction of AMQP 1.0, async API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.engine.amqp10.transactions import TransactionCore
from leveret.client.errors import Error
from leveret.client.timeouts import DEFAULT, Limit

if TYPE_CHECKING:
    from leveret.client._async.connection import Amqp10Connection


class Transaction:
    """A transaction. `async with` commits it at the end, or rolls it back if the block raises.

    Messages sent and deliveries settled in it (`Sender.send(..., transaction=tx)`, `Delivery.accept(tx)`) take effect on
    commit.
    """

    def __init__(self, connection: Amqp10Connection, core: TransactionCore) -> None:
        self._driver = connection.driver
        self._core = core

    @property
    def core(self) -> TransactionCore:
        """The engine of the transaction."""
        return self._core

    @property
    def is_open(self) -> bool:
        """Whether the transaction is neither committed nor rolled back."""
        return self._core.txn_id is not None

    async def commit(self, timeout: Limit = DEFAULT) -> None:
        """Commit the transaction. Raises `TransactionLost` if the server has rolled it back."""
        try:
            await self._driver.run(self._core.discharge(False), timeout, "a commit")
        finally:
            await self._close()

    async def rollback(self, timeout: Limit = DEFAULT) -> None:
        """Roll back the transaction. Deliveries that were settled in it can be settled again."""
        try:
            await self._driver.run(self._core.discharge(True), timeout, "a roll-back")
        finally:
            await self._close()

    async def _close(self) -> None:
        try:
            await self._driver.run(self._core.close(), DEFAULT, "end")
        except Error:
            pass  # the session was lost with its connection

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is None:
            if self.is_open or self._core.lost:
                await self.commit()
        elif self.is_open:
            try:
                await self.rollback()
            except Error:
                pass  # the transaction ended with its connection
