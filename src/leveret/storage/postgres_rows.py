"""Reading of a shard's rows in PostgreSQL by the sealer of its owner.

Each query reads the shard's row in `leveret.owner`, too, and finds nothing if the shard has another epoch. So a sealer
stops as soon as another broker has claimed the shard. An old primary still has the epoch of before, so what only the owner
may do is preceded by a commit, which waits for the standbys: none answers an old primary any more. Queries are transactions
of their own, so that none keeps the server from removing dead rows for long.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg import pq

from leveret.storage.cluster import ClusterSettings, Server
from leveret.storage.postgres_probe import Probe
from leveret.storage.postgres_schema import ReadStatements, Statement, shard_schema
from leveret.storage.postgres_session import Session, StoreLost, Unfit, bigint, read_bigint, unopened
from leveret.storage.row_sources import RowSource, SourceFailed
from leveret.storage.worker import StoreBroken, StoreFull

# The connection must not write. A row that takes longer than this is read again.
_SETTINGS: Final = (
    "SET default_transaction_read_only = on; SET statement_timeout = 30000; SET application_name = 'leveret sealer'"
)
_FAILURES: Final = (psycopg.Error, Unfit, StoreLost, StoreFull, StoreBroken)


class PostgresRows(RowSource):
    """The rows of a shard.

    Args:
        fields: The place of the log, the epoch of its owner, and the server that it uses; see `address_fields`.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__()
        self._shard: int = fields["shard"]
        self._epoch: int = fields["epoch"]
        self._settings = ClusterSettings(fields["dsn"], fields["node"], fields["lease"], fields["unreplicated"])
        self._statements = ReadStatements(self._shard)
        # The server that was used last.
        self._server = Server(fields["system"], fields["timeline"])
        self._session: Session | None = None
        # When a statement was sent that is not answered yet, and what leaves a server that hangs; None for none.
        self._sent: float | None = None
        self._probe: Probe | None = None

    def check_owner(self) -> None:
        self._run(self._statements.check_owner)
        if self._session is not None and self._session.warned:
            raise SourceFailed(
                f"the wait for a standby of PostgreSQL was cancelled, so the owner of shard {self._shard} is unknown; start"
                " the standby"
            )

    def read_row(self, row_id: int) -> tuple[int, bytes, bytes] | None:
        result = self._run(self._statements.read_row, bigint(row_id))
        if result.get_value(0, 0) is None:
            return None
        settled_size = read_bigint(result.get_value(0, 1))
        return settled_size, result.get_value(0, 2) or b"", result.get_value(0, 3) or b""

    def read_chunks(self, first: int, last: int) -> list[tuple[int, bytes, int | None]]:
        result = self._run(self._statements.read_chunks, bigint(first), bigint(last))
        return [
            (
                read_bigint(result.get_value(row, 0)),
                result.get_value(row, 1) or b"",
                read_bigint(result.get_value(row, 2)),
            )
            for row in range(result.ntuples)
            if result.get_value(row, 0) is not None
        ]

    def _run(self, statement: Statement, *values: bytes) -> pq.abc.PGresult:
        """Run a statement, which returns at least one row to the owner. Raises `SourceFailed`."""
        self._sent = time.monotonic()
        try:
            try:
                result = self._connected().run(statement, bigint(self._epoch), *values)
            except StoreLost:
                # The server may have closed the connection while it was idle.
                self._disconnect()
                result = self._connected().run(statement, bigint(self._epoch), *values)
        except _FAILURES as error:
            self._disconnect()
            raise SourceFailed(str(unopened(error))) from None
        finally:
            self._sent = None
        if not result.ntuples:
            raise SourceFailed(f"another broker owns shard {self._shard}, of which this one had epoch {self._epoch}")
        return result

    def _connected(self) -> Session:
        if self._probe is None:
            self._probe = Probe(self._settings, lambda: self._session, self._silence)
        if self._session is None:
            session = Session(self._settings, shard_schema(self._shard), self._server)
            try:
                session.execute_script(_SETTINGS)
                session.prepare(self._statements.all())
            except BaseException:
                session.close()
                raise
            self._session = session
            self._server = session.facts.server
        return self._session

    def _silence(self) -> float:
        """Return the seconds for which the server has not answered."""
        sent = self._sent
        return 0.0 if sent is None else time.monotonic() - sent

    def close(self) -> None:
        if self._probe is not None:
            self._probe.stop()
            self._probe = None
        self._disconnect()

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def address_fields(settings: ClusterSettings, shard: int, epoch: int, server: Server) -> dict[str, Any]:
    """Return the fields of the address of a shard's rows, which contain the password of the database.

    Args:
        settings: The place of the log.
        shard: The number of the shard.
        epoch: The epoch of its owner.
        server: The server that the owner uses.
    """
    return {
        "dsn": settings.dsn,
        "node": settings.node,
        "lease": settings.lease,
        "unreplicated": settings.unreplicated,
        "shard": shard,
        "epoch": epoch,
        "system": server.system,
        "timeline": server.timeline,
    }
