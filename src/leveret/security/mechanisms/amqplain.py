"""AMQPLAIN: name and password as LOGIN and PASSWORD in a field table without its length.

No specification describes it; clients of 0-8 and 0-9, and some of 0-9-1, use it.
"""

from __future__ import annotations

from leveret.broker.values import FieldValue
from leveret.security.mechanisms.base import Context, Failure, Mechanism, NeedsPassword, Outcome, text


class Amqplain(Mechanism):
    name = "AMQPLAIN"
    speaks_first = True

    @classmethod
    def available(cls, context: Context) -> bool:
        return context.decode_table is not None

    def step(self, response: bytes) -> Outcome:
        assert self.context.decode_table is not None
        try:
            table = self.context.decode_table(response)
        except ValueError:
            return Failure("AMQPLAIN: the response is not a field table")
        name, password = _bytes(table.get("LOGIN")), _bytes(table.get("PASSWORD"))
        if name is None or password is None:
            return Failure("AMQPLAIN: expected LOGIN and PASSWORD as strings")
        # Clients with a token as password may send no name.
        username = text(name) if name or not password else ""
        if username is None:
            return Failure("AMQPLAIN: the name is empty or not UTF-8")
        return NeedsPassword(username, password)


def _bytes(value: FieldValue) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return bytes(value) if isinstance(value, (bytes, bytearray)) else None
