"""Unpickling a reader or writer in a task acknowledges the task, so that Spark sends its input."""

from __future__ import annotations

import pickle
import socket
import struct

import pytest

from leveret.spark.task_input import InTask

# The field tcpi_unacked of Linux's struct tcp_info.
UNACKED = slice(24, 28)


class Reader(InTask):
    def __init__(self, name: str) -> None:
        self.name = name


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        return client, accepted


def unacknowledged(sender: socket.socket) -> int:
    """Return the number of packets that were sent and not acknowledged."""
    info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return int(struct.unpack("=I", info[UNACKED])[0])


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="acknowledgements are only sent on request on Linux")
def test_what_was_received_is_acknowledged_at_once() -> None:
    pickled = pickle.dumps(Reader("orders"))
    spark, worker = connected()
    with spark, worker:
        # After some requests and replies, acknowledgements wait for the next reply.
        for _ in range(30):
            spark.sendall(b"request")
            worker.recv(100)
            worker.sendall(b"reply")
            spark.recv(100)
        spark.sendall(b"a task")
        assert worker.recv(100) == b"a task"
        pickle.loads(pickled)
        assert unacknowledged(spark) == 0


def test_unpickling_keeps_the_state_whatever_files_are_open() -> None:
    pair = socket.socketpair()
    with pair[0], pair[1], socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket():
        assert pickle.loads(pickle.dumps(Reader("orders"))).name == "orders"
