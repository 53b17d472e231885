"""A TCP proxy between client and broker that can cut, stall and half-close what runs through it."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.broker import Broker


class Proxy(Broker):
    """Looks like the broker behind it."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(user=broker.user, password=broker.password, vhost=broker.vhost)
        self.broker = broker
        self.listener = socket.create_server((self.host, 0))
        self.port = self.listener.getsockname()[1]
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        # Cleared to pass nothing on, in both directions, while the sockets stay open.
        self.flowing = threading.Event()
        self.flowing.set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self.listener.accept()[0]
                server = socket.create_connection((self.broker.host, self.broker.port))
            except OSError:
                return
            with self._lock:
                self.pairs.append((client, server))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.flowing.wait()
                target.sendall(data)
        except OSError:
            pass
        # A closed pair closes on both sides.
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> int:
        """Break every connection now; the return value is how many there were."""
        with self._lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        return len(pairs)

    def stop(self) -> None:
        self.flowing.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()
