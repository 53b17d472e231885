"""What waiters carry."""

from __future__ import annotations

from typing import Any, TypeAlias

# The result of a call. Who made the call knows its type, the waiter between the engine and the caller does not.
Result: TypeAlias = Any
