"""The result type of waiters."""

from __future__ import annotations

from typing import Any, TypeAlias

# The result of a call. Its type is known to the caller, but not to the waiter.
Result: TypeAlias = Any
