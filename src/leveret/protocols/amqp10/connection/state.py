"""States of a connection (transport section 2.4.6), named after what it waits for: a SASL frame, the header after SASL,
open, frames, or nothing.
"""

from __future__ import annotations

from typing import Final

IN_SASL: Final = 0
AWAIT_HEADER: Final = 1
AWAIT_OPEN: Final = 2
OPENED: Final = 3
CLOSED: Final = 4
