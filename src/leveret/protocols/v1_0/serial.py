"""Serial numbers of 32 bits (RFC 1982), and how far they may run ahead."""

from __future__ import annotations

from typing import Final

MODULUS: Final = 1 << 32
HALF: Final = 1 << 31
# Transfer frames that either side of a session may send ahead.
WINDOW: Final = 4096
