"""Operations that a queue type may not support, as keys of `Queue.unsupported`."""

from __future__ import annotations

from typing import Final

GET: Final = "get"
PURGE: Final = "purge"
BROWSE: Final = "browse"
LEASE: Final = "lease"
