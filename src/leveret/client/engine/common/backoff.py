"""Schedule of reconnects after a lost connection."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from leveret.client.errors import Error
from leveret.client.parameters import Parameters
from leveret.wire.amqp0.constants import CONNECTION_FORCED
from leveret.wire.amqp10 import constants

# Seconds between two reconnects without a pause: a server may close each connection as soon as it is open.
MIN_INTERVAL: Final = 1.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to connect.

    Attributes:
        number: Number of the attempt, from 1.
        parameters: Host to connect to.
        delay: Seconds to wait before the attempt.
    """

    number: int
    parameters: Parameters
    delay: float


class Backoff:
    """Attempts to reconnect: first to the lost host, then to the other hosts in order.

    The delay doubles with every attempt. Half of it is random, so that the clients of a restarted server do not all
    reconnect at once.

    Args:
        hosts: Hosts to try.
        last: Host of the lost connection.
        chance: Returns a random number from 0 to 1.
        moves: Whether to begin with the host after the lost one, and to try each host once before the first pause.
    """

    def __init__(
        self, hosts: Sequence[Parameters], last: Parameters, chance: Callable[[], float], *, moves: bool = False
    ) -> None:
        at = next((number for number, host in enumerate(hosts) if host == last), 0) + moves
        self._hosts = [*hosts[at:], *hosts[:at]]
        self._chance = chance
        self._without_delay = len(hosts) if moves else 0

    def __iter__(self) -> Iterator[Attempt]:
        number = 0
        while True:
            for parameters in self._hosts:
                number += 1
                if 0 < parameters.reconnect_attempts < number:
                    return
                # 2^40 exceeds every maximum delay; a larger exponent would overflow.
                exponent = min(number - self._without_delay - 1, 40)
                delay = min(parameters.reconnect_max_delay, parameters.reconnect_delay * 2.0**exponent)
                yield Attempt(number, parameters, delay * (0.5 + self._chance() / 2) if exponent >= 0 else 0.0)


class Backoffs:
    """The schedules of a connection that may be lost several times.

    Args:
        clock: Returns the time in seconds.
        chance: Returns a random number from 0 to 1.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._chance = chance
        # When the last schedule has begun.
        self._last = -MIN_INTERVAL

    def begin(self, hosts: Sequence[Parameters], last: Parameters, error: Error) -> Backoff:
        """Return the schedule after a loss.

        Args:
            hosts: Hosts to try.
            last: Host of the lost connection.
            error: The reason for the loss.
        """
        now = self._clock()
        is_forced = error.reply_code == CONNECTION_FORCED or error.condition == constants.CONNECTION_FORCED
        moves = is_forced and now - self._last >= MIN_INTERVAL
        self._last = now
        return Backoff(hosts, last, self._chance, moves=moves)
