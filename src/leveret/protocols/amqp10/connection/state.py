"""States of a connection (transport section 2.4.6), named by the input that it expects."""

from __future__ import annotations

from typing import Final

IN_SASL: Final = 0
AWAIT_HEADER: Final = 1
AWAIT_OPEN: Final = 2
OPENED: Final = 3
CLOSED: Final = 4
