"""Measure the memory of a socket before its client opens a connection: `python -m bench.sockets [COUNT]`.

Divides the growth of the broker's resident memory by COUNT sockets (1,000), which stop at different stages.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config, free_port

PAGE = os.sysconf("SC_PAGE_SIZE")
WARM = 50

CONFIG = """
[server]
handshake_timeout = "300s"

[limits]
unauthenticated = 0
unauthenticated_per_address = 0

[tls]
host = "127.0.0.1"
port = {port}
cert = "{cert}"
key = "{key}"
"""


def resident(pid: int) -> int:
    """Return the resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def main() -> int:
    """Measure, and print KiB per socket."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as directory:
        authority = Authority(Path(directory))
        cert, key = authority.issue("server")
        port = free_port()
        trusting = ssl.create_default_context(cafile=str(authority.path))

        def plain(broker: LeveretProcess) -> socket.socket:
            return socket.create_connection(("127.0.0.1", broker.port))

        def silent_tls(broker: LeveretProcess) -> socket.socket:
            return socket.create_connection(("127.0.0.1", port))

        def handshake(broker: LeveretProcess) -> socket.socket:
            return trusting.wrap_socket(silent_tls(broker), server_hostname="localhost")

        def header(broker: LeveretProcess) -> socket.socket:
            opened = plain(broker)
            opened.sendall(b"AMQP\x00\x00\x09\x01")
            assert opened.recv(4096)
            return opened

        def tls_header(broker: LeveretProcess) -> socket.socket:
            opened = handshake(broker)
            opened.sendall(b"AMQP\x00\x00\x09\x01")
            assert opened.recv(4096)
            return opened

        stages: dict[str, Callable[[LeveretProcess], socket.socket]] = {
            "silent, plain port": plain,
            "silent, TLS port": silent_tls,
            "after the TLS handshake": handshake,
            "after the protocol header": header,
            "after the TLS handshake and the protocol header": tls_header,
        }
        config = basic_config() + CONFIG.format(port=port, cert=cert, key=key)
        for name, open_one in stages.items():
            broker = LeveretProcess(Path(directory) / name.replace(" ", "-"), config=config).start()
            for _ in range(WARM):
                open_one(broker).close()
            time.sleep(1)
            before = resident(broker.pid)
            sockets = [open_one(broker) for _ in range(count)]
            time.sleep(1)
            print(f"{name:50} {(resident(broker.pid) - before) / count / 1024:8.1f} KiB", flush=True)
            for one in sockets:
                one.close()
            broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
