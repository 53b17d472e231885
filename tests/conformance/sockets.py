"""Peers that are dropped at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from tests.support.broker import Broker


class _Droppable(Protocol):
    def drop(self) -> None: ...


P = TypeVar("P", bound=_Droppable)


def sockets(kind: Callable[..., P], broker: Broker) -> Iterator[Callable[..., P]]:
    """Yield a factory of new peers of this or another broker for a fixture, before the handshake."""
    peers: list[P] = []

    def make(at: Broker = broker, **options: int) -> P:
        peer = kind(at.host, at.port, **options)
        peers.append(peer)
        return peer

    yield make
    for peer in peers:
        peer.drop()
