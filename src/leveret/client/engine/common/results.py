"""What waiters carry."""

from __future__ import annotations

from typing import Any, TypeAlias

# The result of a call. Only the caller knows its type; the waiter between engine and caller does not.
Result: TypeAlias = Any
