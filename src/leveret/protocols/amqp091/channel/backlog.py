"""Commands of a stalled channel."""

from __future__ import annotations

from collections import deque
from typing import Final

from leveret.protocols.amqp091.connection.commands import size_of
from leveret.wire.amqp0.commands import Command, ContentPart, Method, Publish
from leveret.wire.record_batches import ADDRESS_PREFIX, MAX_BYTES

# Commands and content bytes queued behind a pending reply above which the broker stops reading the connection.
MAX_BACKLOG: Final = 10_000
MAX_BACKLOG_SIZE: Final = 4 << 20


class CommandBacklog:
    """Commands that wait for a pending reply of their channel, in order."""

    def __init__(self) -> None:
        # None until a command waits: most channels never stall, and an empty deque takes 700 bytes.
        self._commands: deque[Command] | None = None
        self._size = 0

    def __len__(self) -> int:
        return 0 if self._commands is None else len(self._commands)

    def _queue(self) -> deque[Command]:
        commands = self._commands
        if commands is None:
            commands = self._commands = deque()
        return commands

    def add(self, command: Command) -> None:
        self._queue().append(command)
        if isinstance(command, ContentPart):
            self._size += len(command.data)
        elif isinstance(command, Publish) and not command.spooled:
            # Each row of a record batch will take memory, however small it is.
            self._size += MAX_BYTES if command.address.startswith(ADDRESS_PREFIX) else command.size
        elif isinstance(command, Method):
            self._size += size_of(command)

    def is_full(self) -> bool:
        """Return whether the broker must stop reading the connection."""
        return len(self) > MAX_BACKLOG or self._size > MAX_BACKLOG_SIZE

    def put_first(self, commands: list[Command]) -> None:
        """Insert commands before all others."""
        self._queue().extendleft(reversed(commands))

    def begin(self) -> None:
        """Begin to take the commands: from now on, only those added later count for the limit."""
        self._size = 0

    def take(self) -> Command:
        """Remove and return the first command."""
        return self._queue().popleft()

    def clear(self) -> None:
        self._commands = None
        self._size = 0
