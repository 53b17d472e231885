"""The move of the messages of many queues, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from leveret.cli.migration.source import Key, with_vhost
from leveret.cli.output import counted
from leveret.client.errors import ChannelClosed, Error
from leveret.shovel.lengths import Length, Lengths
from leveret.shovel.moves import RETRY_DELAY, RETRY_TIMEOUT, Move, QueueAddress

_NAME: Final = "leveret migrate"
# Queues that are moved at a time.
MAX_MOVES: Final = 8
# Seconds between two passes over all queues when all are empty.
POLL_INTERVAL: Final = 0.5


class MovedQueue(msgspec.Struct, kw_only=True):
    """State of a queue that moves.

    Attributes:
        moved: Messages that have left the source.
        left: Ready messages at the source, when they were counted the last time.
        consumers: Consumers of the source at that time.
        missing: Messages that have left the source by which the destination has not grown; None if its consumers take
            messages, so that this is unknown.
        problem: Why messages do not move, or are missing; "" for no problem.
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
        """Whether messages are left or missing, or it is unknown whether the source has any."""
        return bool(self.left or self.missing or self.problem)


class QueueMoves:
    """Moves of queues to queues of the same names in the same vhosts.

    A queue with consumers at the source is not moved, because these would take messages, too: their order would be lost.

    Each pass over the queues moves what they have when it is their turn, so that busy queues do not delay the others.

    Args:
        queues: The queues.
        source: URI of the source without a vhost.
        destination: URI of the destination without a vhost.
        follows: Whether to continue when all queues are empty, until the task is cancelled.
        with_consumers: Whether to move queues with consumers, too.
        adds_origin: Whether to add headers with the exchange and the routing key of each message.
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
        adds_origin: bool,
        report: Callable[[str], None],
    ) -> None:
        self._source = source
        self._destination = destination
        self._follows = follows
        self._with_consumers = with_consumers
        self._adds_origin = adds_origin
        self._report = report
        self._silence = ""
        # By vhost: those of the source, and of the destination.
        self._lengths = {
            vhost: (Lengths(with_vhost(source, vhost), _NAME), Lengths(with_vhost(destination, vhost), _NAME))
            for vhost in dict.fromkeys(vhost for vhost, _ in queues)
        }
        self._moves: dict[Key, Move] = {}
        # Queues whose move has failed, which are not moved again unless the moves continue.
        self._failed: set[Key] = set()
        self.queues = {(vhost, name): MovedQueue(vhost=vhost, name=name) for vhost, name in queues}

    def state(self) -> tuple[int, float | None]:
        """Return the number of messages that have left the source, and their share of those known; None without any."""
        moved = sum(queue.moved for queue in self.queues.values()) + sum(move.moved for move in self._moves.values())
        left = sum(queue.left for key, queue in self.queues.items() if key not in self._moves)
        for key, move in self._moves.items():
            left += self.queues[key].left if move.left is None else move.left
        return moved, moved / (moved + left) if moved + left else None

    async def run(self) -> None:
        """Move the messages until no queue has any that can be moved.

        Raises:
            Error: A broker refuses, other than the move of a single queue.
            OSError: A broker cannot be reached.
        """
        try:
            for both in self._lengths.values():
                for lengths in both:
                    await lengths.open()  # a refusal is that of the vhost, not of each queue
            while await self._pass() or self._follows:
                if self._follows:
                    await asyncio.sleep(POLL_INTERVAL)
        finally:
            for both in self._lengths.values():
                for lengths in both:
                    await lengths.close()

    async def _pass(self) -> bool:
        """Move the messages that the queues have, several queues at a time. Return whether there were any."""
        queues = iter(list(self.queues.items()))
        workers = [asyncio.create_task(self._work(queues)) for _ in range(MAX_MOVES)]
        try:
            return any(await asyncio.gather(*workers))
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, queues: Iterable[tuple[Key, MovedQueue]]) -> bool:
        has_moved = False
        for key, queue in queues:
            has_moved |= await self._advance(key, queue)
        return has_moved

    async def _advance(self, key: Key, queue: MovedQueue) -> bool:
        """Move the messages of a queue, if it has any that can be moved. Return whether any were moved."""
        try:
            length = await self._length(queue)
        except ChannelClosed as error:  # it was deleted, or its node is down
            self._note(queue, str(error))
            return False
        queue.left, queue.consumers = length.messages, length.consumers
        if not length.messages:
            if not queue.missing:
                queue.problem = ""
            return False
        if length.consumers and not self._with_consumers:
            self._note(
                queue,
                f"it has {counted(length.consumers, 'consumer')} at the source; stop them first, or add --with-consumers",
            )
            return False
        if key in self._failed and not self._follows:
            return False
        await self._move(key, queue)
        return True

    async def _move(self, key: Key, queue: MovedQueue) -> None:
        source, destination = (
            QueueAddress(with_vhost(uri, queue.vhost), queue.name) for uri in (self._source, self._destination)
        )
        move = self._moves[key] = Move(
            source,
            destination,
            _NAME,
            observers=self._lengths[queue.vhost],
            arguments=None,
            adds_origin=self._adds_origin,
            report=lambda text: self._report(f"{queue.label}: {text}"),
        )
        try:
            await move.run(until_empty=False)
            queue.left = 0
            self._note_end(queue, move)
        except (Error, OSError) as error:
            self._failed.add(key)
            self._note(queue, str(error))
        finally:
            del self._moves[key]
            queue.moved += move.moved
            queue.left = max(queue.left - move.moved, 0)

    def _note_end(self, queue: MovedQueue, move: Move) -> None:
        """Compare the numbers of messages after a move."""
        self._report(f"{queue.label}: moved {counted(move.moved, 'message')}")
        if move.gained is None:
            queue.missing = None
            return
        missing = max(move.moved - move.gained, 0)
        queue.missing = None if queue.missing is None else queue.missing + missing
        if missing:
            self._note(
                queue,
                f"the destination has {counted(move.gained, 'message')} more, but {move.moved} were moved; see its limits",
            )
        elif not queue.missing:
            queue.problem = ""

    def _note(self, queue: MovedQueue, problem: str) -> None:
        if queue.problem != problem:
            queue.problem = problem
            self._report(f"{queue.label}: {problem}")

    def _report_silence(self, text: str) -> None:
        """Report that the source does not answer, once for all queues."""
        if text != self._silence:
            self._silence = text
            self._report(text)

    async def _length(self, queue: MovedQueue) -> Length:
        """Return the length of a queue at the source. Waits for a source that is starting.

        Raises:
            ChannelClosed: The source refuses, for example because the queue does not exist.
            Error: The source has not answered for `RETRY_TIMEOUT`.
            OSError: The same.
        """
        lengths, _ = self._lengths[queue.vhost]
        clock = asyncio.get_running_loop().time
        deadline = clock() + RETRY_TIMEOUT
        while True:
            try:
                return await lengths.of(queue.name)
            except ChannelClosed:
                raise
            except (Error, OSError) as error:
                if not self._follows and clock() > deadline:
                    raise
                self._report_silence(f"the source does not answer: {error}")
                await asyncio.sleep(RETRY_DELAY)
