"""When and where to try next, after a connection was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from leveret.client.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Attempt:
    """number from 1; delay in seconds before it."""

    number: int
    parameters: Parameters
    delay: float


class Backoff:
    """The attempts: the host that was lost first, then the others in turn. The delay doubles with every attempt, and half
    of it is left to chance, so that the clients of a server that comes back do not come all at once.

    chance   a number from 0 to 1, anew with every call
    """

    def __init__(self, hosts: Sequence[Parameters], last: Parameters, chance: Callable[[], float]) -> None:
        at = next((number for number, host in enumerate(hosts) if host == last), 0)
        self._hosts = [*hosts[at:], *hosts[:at]]
        self._chance = chance

    def __iter__(self) -> Iterator[Attempt]:
        number = 0
        while True:
            for parameters in self._hosts:
                number += 1
                if 0 < parameters.reconnect_attempts < number:
                    return
                # From 2^40 on the greatest delay is reached anyway.
                delay = min(parameters.reconnect_max_delay, parameters.reconnect_delay * 2.0 ** min(number - 1, 40))
                yield Attempt(number, parameters, delay * (0.5 + self._chance() / 2))
