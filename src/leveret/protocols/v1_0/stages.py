"""What a connection waits for: a SASL frame, the header behind SASL, open, anything; or nothing any more."""

from __future__ import annotations

from typing import Final

IN_SASL: Final = 0
HEADER_DUE: Final = 1
OPEN_DUE: Final = 2
OPENED: Final = 3
OVER: Final = 4
