"""The move of the messages of many queues, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from leveret.cli.migration.source import with_vhost
from leveret.client.errors import Error, NotFound
from leveret.shovel.moves import Length, Lengths, Move, QueueAddress

_NAME: Final = "leveret migrate"
# Queues that are moved at a time.
MAX_MOVES: Final = 8
# Seconds between two looks at the lengths of the queues.
POLL_INTERVAL: Final = 0.5

# The vhost and the name of a queue.
Key: TypeAlias = tuple[str, str]


class MovedQueue(msgspec.Struct, kw_only=True):
    """State of a queue that moves.

    Attributes:
        moved: Messages that have left the source.
        left: Ready messages at the source, when they were counted the last time.
        consumers: Consumers of the source at that time.
        missing: Messages that have left the source by which the destination has not grown; None if its consumers take
            messages, so that this is unknown.
        problem: Why the messages that are left do not move; "" for no problem.
    """

    vhost: str
    name: str
    moved: int = 0
    left: int = 0
    consumers: int = 0
    missing: int | None = 0
    problem: str = ""

    @property
    def label(self) -> str:
        """The queue in messages."""
        return f"queue '{self.name}' in vhost '{self.vhost}'"

    @property
    def has_failed(self) -> bool:
        """Whether messages are left or missing."""
        return bool(self.left or self.missing)


class QueueMoves:
    """Moves of queues to queues of the same names in the same vhosts.

    A queue with consumers at the source is not moved, because these would take messages, too: their order would be lost.

    Args:
        queues: The queues.
        source: URI of the source without a vhost.
        destination: URI of the destination without a vhost.
        follows: Whether to continue when all queues are empty, until the task is cancelled.
        with_consumers: Whether to move queues with consumers, too.
        report: Called with a line of text for operators.

    Attributes:
        queues: What has become of each queue.
    """

    def __init__(
        self,
        queues: Sequence[Key],
        source: str,
        destination: str,
        *,
        follows: bool,
        with_consumers: bool,
        report: Callable[[str], None],
    ) -> None:
        self._source = source
        self._destination = destination
        self._follows = follows
        self._with_consumers = with_consumers
        self._report = report
        self._lengths: dict[str, Lengths] = {}
        self._moves: dict[Key, tuple[Move, asyncio.Task[None]]] = {}
        # Queues whose move has failed, which are not moved again unless the moves continue.
        self._failed: set[Key] = set()
        self.queues = {(vhost, name): MovedQueue(vhost=vhost, name=name) for vhost, name in queues}

    def state(self) -> tuple[int, float | None]:
        """Return the number of messages that have left the source, and their share of those known; None without any."""
        moved = sum(queue.moved for queue in self.queues.values()) + sum(move.moved for move, _ in self._moves.values())
        left = sum(queue.left for key, queue in self.queues.items() if key not in self._moves)
        for key, (move, _) in self._moves.items():
            left += self.queues[key].left if move.left is None else move.left
        return moved, moved / (moved + left) if moved + left else None

    async def run(self) -> None:
        """Move the messages until no queue has any that can be moved.

        Raises:
            Error: A broker refuses, other than the move of a single queue.
            OSError: A broker cannot be reached.
        """
        try:
            await self._check_destination()
            while True:
                has_more = await self._start_moves()
                if self._moves:
                    tasks = [task for _, task in self._moves.values()]
                    await asyncio.wait(tasks, timeout=POLL_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
                elif self._follows:
                    await asyncio.sleep(POLL_INTERVAL)
                elif not has_more:
                    return
                self._reap()
        finally:
            tasks = [task for _, task in self._moves.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._reap()
            for lengths in self._lengths.values():
                await lengths.close()

    async def _check_destination(self) -> None:
        """Connect to each vhost of the destination once, so that a refusal is not that of each queue."""
        for vhost in dict.fromkeys(vhost for vhost, _ in self.queues):
            async with Lengths(with_vhost(self._destination, vhost), _NAME) as lengths:
                await lengths.open()

    async def _start_moves(self) -> bool:
        """Start moves of queues that have messages. Return whether there are others to start later."""
        for key, queue in self.queues.items():
            if key in self._moves:
                continue
            length = await self._length(queue)
            queue.left, queue.consumers = length.messages, length.consumers
            if not length.messages:
                queue.problem = ""
            elif length.consumers and not self._with_consumers:
                self._note(
                    queue, f"it has consumers at the source ({length.consumers}); stop them first, or add --with-consumers"
                )
            elif self._follows or key not in self._failed:
                if len(self._moves) >= MAX_MOVES:
                    return True
                self._start(key, queue)
        return False

    def _start(self, key: Key, queue: MovedQueue) -> None:
        source, destination = (
            QueueAddress(with_vhost(uri, queue.vhost), queue.name) for uri in (self._source, self._destination)
        )
        move = Move(source, destination, _NAME, arguments=None, report=lambda text: self._note(queue, text))
        self._moves[key] = move, asyncio.create_task(move.run(), name=queue.label)

    def _reap(self) -> None:
        """Note the results of the moves that have ended."""
        for key, (move, task) in list(self._moves.items()):
            if not task.done():
                continue
            del self._moves[key]
            queue = self.queues[key]
            queue.moved += move.moved
            queue.left = max(queue.left - move.moved, 0)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                if not isinstance(error, (Error, OSError)):
                    raise error
                self._failed.add(key)
                self._note(queue, str(error))
            elif not task.cancelled():
                self._note_end(queue, move)

    def _note_end(self, queue: MovedQueue, move: Move) -> None:
        """Note that the source of a move is empty, and compare the numbers of messages."""
        queue.left = 0
        self._report(f"{queue.label}: moved {move.moved} messages")
        if move.gained is None:
            queue.missing = None
            return
        missing = max(move.moved - move.gained, 0)
        queue.missing = None if queue.missing is None else queue.missing + missing
        if missing:
            self._note(queue, f"the destination has {move.gained} messages more, but {move.moved} were moved")

    def _note(self, queue: MovedQueue, problem: str) -> None:
        if queue.problem != problem:
            queue.problem = problem
            self._report(f"{queue.label}: {problem}")

    async def _length(self, queue: MovedQueue) -> Length:
        """Return the length of a queue at the source; 0 if it does not exist. Raises `Error` or `OSError`."""
        lengths = self._lengths.get(queue.vhost)
        if lengths is None:
            lengths = self._lengths[queue.vhost] = Lengths(with_vhost(self._source, queue.vhost), _NAME)
        try:
            return await lengths.of(queue.name)
        except NotFound:
            return Length(0, 0)
