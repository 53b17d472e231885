"""A TCP proxy between client and broker that can cut, stall, delay, repeat and slow down the traffic."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque

from tests.support.broker import Broker

CHUNK = 1 << 16


class Pair:
    """A connection of a client and the corresponding one to the broker."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        # Cleared: nothing is forwarded, while the sockets stay open.
        self.flowing = threading.Event()
        self.flowing.set()
        # Whether the next answer cuts it.
        self.cuts_answer = False
        self._pumps = 2
        self._lock = threading.Lock()

    def pump_ends(self) -> None:
        """Close a pair on both sides; it is removed when both directions have ended."""
        ends = (self.client, self.server)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._pumps -= 1
            if not self._pumps:
                for end in ends:
                    end.close()

    def cut(self) -> None:
        """Break every connection now. Returns their number."""
        self.flowing.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Proxy(Broker):
    """A proxy that looks like the broker behind it.

    flowing     clear it to forward nothing, in both directions, while the sockets stay open
    delay       seconds by which every piece is delayed
    rate        bytes per second in each direction of each connection, 0 for no limit
    cut_after   bytes after which the next connections are cut, even within a frame; None for never
    next_cuts   the same for each of the next connections, as a pair: bytes to the broker, and to the client
    cut_at      bytes from a client that cut its connection, once, instead of being forwarded; b"" for none
    cut_answers number of next pieces to a client that cut its connection instead of being forwarded
    cut_answer_to  the same for the answer to these bytes
    repeats     number of next pieces, in either direction, that are forwarded twice
    stall_after bytes to a client after which its connection stalls, while the sockets stay open; None for never
    stalled     the connections that have stalled so
    to_server, to_client   forwarded bytes
    accepted    number of connections
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(user=broker.user, password=broker.password, vhost=broker.vhost)
        self.broker = broker
        self.kind = broker.kind
        self.listener = socket.create_server((self.host, 0))
        self.port = self.listener.getsockname()[1]
        self.pairs: list[Pair] = []
        self.flowing = threading.Event()
        self.flowing.set()
        self.delay = 0.0
        self.rate = 0
        self.cut_after: int | None = None
        self.next_cuts: deque[tuple[int | None, int | None]] = deque()
        self.cut_at = b""
        self.cut_answers = 0
        self.cut_answer_to = b""
        self.repeats = 0
        self.stall_after: int | None = None
        self.stalled: list[Pair] = []
        self.to_server = 0
        self.to_client = 0
        self.accepted = 0
        self._open = True
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self._open:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection((self.broker.host, self.broker.port))
            except OSError:
                # The broker is down, so the proxy refuses, too.
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = Pair(client, server)
            with self._lock:
                self.pairs.append(pair)
                self.accepted += 1
            cuts = self.next_cuts.popleft() if self.next_cuts else (self.cut_after, self.cut_after)
            for to_server, cut_after in zip((True, False), cuts, strict=True):
                threading.Thread(target=self._pump, args=(pair, to_server, cut_after), daemon=True).start()

    def _pump(self, pair: Pair, to_server: bool, cut_after: int | None) -> None:
        source, target = (pair.client, pair.server) if to_server else (pair.server, pair.client)
        passed = 0
        try:
            while data := source.recv(min(CHUNK, max(1, self.rate // 20)) if self.rate else CHUNK):
                if not to_server and self.stall_after is not None and passed + len(data) > self.stall_after:
                    pair.flowing.clear()
                    self.stalled.append(pair)
                self.flowing.wait()
                pair.flowing.wait()
                if self.delay:
                    time.sleep(self.delay)
                if self.rate:
                    time.sleep(len(data) / self.rate)
                if cut_after is not None and passed + len(data) > cut_after:
                    target.sendall(data[: cut_after - passed])
                    break
                if to_server and self.cut_at and self.cut_at in data:
                    self.cut_at = b""
                    break
                if to_server and self.cut_answer_to and self.cut_answer_to in data:
                    self.cut_answer_to = b""
                    pair.cuts_answer = True
                if not to_server and self.cut_answers:
                    self.cut_answers -= 1
                    break
                if not to_server and pair.cuts_answer:
                    break
                passed += len(data)
                with self._lock:
                    if self.repeats:
                        self.repeats -= 1
                        data += data
                    if to_server:
                        self.to_server += len(data)
                    else:
                        self.to_client += len(data)
                target.sendall(data)
        except OSError:
            pass
        pair.pump_ends()

    def _take(self) -> list[Pair]:
        with self._lock:
            pairs, self.pairs = self.pairs, []
        return pairs

    def cut(self) -> int:
        """Break every connection now; the return value is how many there were."""
        pairs = self._take()
        for pair in pairs:
            pair.cut()
        return len(pairs)

    def half_open(self) -> list[Pair]:
        """Stall the existing connections without closing them; new ones work. `Pair.cut` ends them."""
        pairs = self._take()
        for pair in pairs:
            pair.flowing.clear()
        return pairs

    def stop(self) -> None:
        self._open = False
        self.flowing.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()
