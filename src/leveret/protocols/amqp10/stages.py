"""What a connection waits for: a SASL frame, the header behind SASL, open, anything; or nothing any more."""

from __future__ import annotations

from typing import Final

IN_SASL: Final = 0
AWAIT_HEADER: Final = 1
AWAIT_OPEN: Final = 2
OPENED: Final = 3
CLOSED: Final = 4
