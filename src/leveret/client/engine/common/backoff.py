"""Schedule of reconnects after a lost connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from leveret.client.parameters import Parameters


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
                # 2^40 exceeds every maximum delay; a larger exponent would overflow.
                delay = min(parameters.reconnect_max_delay, parameters.reconnect_delay * 2.0 ** min(number - 1, 40))
                yield Attempt(number, parameters, delay * (0.5 + self._chance() / 2))
