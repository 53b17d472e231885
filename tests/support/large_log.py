"""Large logs, written without a broker: a row for each message, which take longest to index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from leveret.broker import metadata
from leveret.broker.message import make_address
from leveret.storage.batch import RowImage, encode_index
from leveret.storage.checksums import number_sum, row_columns
from leveret.storage.records import INDEX, PLAIN

# The content header of a persistent message with a body of 8 bytes.
HEADER = b"\x00\x3c\x00\x00" + (8).to_bytes(8, "big") + b"\x10\x00\x02"


def body_of(seq: int) -> bytes:
    return b"%08d" % seq


def queue_ids(data_dir: Path) -> dict[str, int]:
    """Return the ids of the durable queues in the log of a stopped broker, by their names."""
    with closing(sqlite3.connect(data_dir / "log-0.sqlite")) as connection:
        found = connection.execute("SELECT key, value FROM metadata WHERE kind = ?", (metadata.QUEUE,)).fetchall()
    return {metadata.split_key(key.decode())[1]: metadata.unpack(value)["id"] for key, value in found}


def add_messages(data_dir: Path, queue: str, count: int) -> None:
    """Add messages to a queue that was always empty: sequence numbers from 1, and bodies as by `body_of`."""
    queue_id = queue_ids(data_dir)[queue]
    with closing(sqlite3.connect(data_dir / "log-0.sqlite", isolation_level=None)) as connection:
        first = (connection.execute("SELECT max(id) FROM log").fetchone()[0] or 0) + 1
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", _rows(queue, queue_id, first, count))
        for table, key, value, total in (
            ("mark", queue_id, count, number_sum(f"mark {queue_id}", count)),
            ("state", "next_row", first + count, number_sum("next_row", first + count)),
        ):
            connection.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", (key, value, total))
        connection.execute("COMMIT")


def _rows(queue: str, queue_id: int, first: int, count: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    address = make_address("", queue)
    length = len(address) + len(HEADER) + 8
    for seq in range(1, count + 1):
        index = encode_index(INDEX.pack(seq, queue_id, 8, length, PLAIN, -1), None, bytearray(b"\x01"))
        image = RowImage(first + seq - 1, b"", index, [address, HEADER, body_of(seq)])
        yield image.id, *row_columns(image)
