"""A blocking client of the control socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, BinaryIO

from leveret.management.socket_path import CONTROL_SOCKET, MAX_ANSWER, short_path

TIMEOUT = 60.0


class NoBroker(Exception):
    """No broker runs on the data directory. The message says what to do."""


class CallFailed(Exception):
    """The broker refused the call. The message says why.

    Attributes:
        condition: The condition of the broker's error, "" if it is unknown.
    """

    def __init__(self, text: str, condition: str = "") -> None:
        super().__init__(text)
        self.condition = condition


def call(data_dir: Path, name: str, arguments: dict[str, Any] | None = None, *, timeout: float = TIMEOUT) -> Any:
    """Call the broker that runs on `data_dir`, and return the result. Raises `NoBroker` or `CallFailed`."""
    request = json.dumps({"v": 1, "call": name, "arguments": arguments or {}}).encode() + b"\n"
    with _connect(data_dir, timeout) as connection:
        try:
            connection.sendall(request)
            with connection.makefile("rb") as answers:
                return _result(answers, data_dir)
        except TimeoutError:
            raise NoBroker(f"the broker on {data_dir} did not answer within {timeout:g} seconds") from None
        except ConnectionError:
            raise NoBroker(f"the broker on {data_dir} closed the control connection") from None


def _connect(data_dir: Path, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    path = data_dir / CONTROL_SOCKET
    try:
        with short_path(path) as name:
            connection.connect(name)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        connection.close()
        raise NoBroker(
            f"no broker is running on {data_dir}\nStart one with `leveret serve --data-dir {data_dir}`, or select another "
            "one with --data-dir or --config."
        ) from None
    except PermissionError:
        connection.close()
        raise NoBroker(f"no permission to use {path}; run this command as the user of the broker") from None
    except OSError as error:
        connection.close()
        raise NoBroker(f"cannot connect to {path}: {error}") from None
    return connection


def _result(answers: BinaryIO, data_dir: Path) -> Any:
    parts: list[Any] = []
    left = MAX_ANSWER
    while line := answers.readline(left + 1):
        left -= len(line)
        if left < 0:
            raise CallFailed(f"the answer of the broker on {data_dir} has more than {MAX_ANSWER >> 20} MiB, the maximum")
        answer = json.loads(line)
        if "error" in answer:
            raise CallFailed(answer["error"]["text"], answer["error"]["condition"])
        if "part" in answer:
            parts += answer["part"]
            continue
        result = answer["result"]
        return parts + result if isinstance(result, list) else result
    raise NoBroker(f"the broker on {data_dir} closed the control connection")
