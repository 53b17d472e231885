"""Client exceptions for socket errors."""

from __future__ import annotations

import os
import re
import ssl
from typing import Final

from leveret.client.errors import ConnectionFailed, ConnectionLost, Error, TlsFailed
from leveret.client.parameters import Parameters

_ERROR_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")


def socket_error(parameters: Parameters, error: OSError) -> Error:
    """Return the exception for a socket that could not be opened."""
    at = f"{parameters.host}:{parameters.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"{at}: the server's certificate was rejected: {error.verify_message} (options cafile, server_name, verify)",
            host=parameters.host,
            port=parameters.port,
        )
    if isinstance(error, ssl.SSLError) or (parameters.uses_tls and isinstance(error, ConnectionResetError)):
        reason = getattr(error, "reason", "") or error
        return TlsFailed(
            f"{at}: TLS failed: {reason}; does the port speak TLS?", host=parameters.host, port=parameters.port
        )
    return ConnectionFailed(f"cannot connect to {at}: {_reason(error)}", host=parameters.host, port=parameters.port)


def _reason(error: OSError) -> str:
    """Return why a socket could not be opened, without the addresses in the texts of asyncio."""
    if error.errno is None:
        # If a host has several addresses, asyncio raises one exception with the texts of all.
        numbers = [int(number) for number in _ERROR_NUMBER.findall(str(error))]
    else:
        numbers = [error.errno] if error.errno > 0 else []  # those of the resolver are negative
    return ", ".join(dict.fromkeys(map(os.strerror, numbers))) or error.strerror or str(error)


def lost_error(error: BaseException | None) -> ConnectionLost:
    """Return the exception for a socket that was closed or broke."""
    if error is None:
        reason = "the server closed the socket"
    else:
        reason = f"the socket broke: {error}" if isinstance(error, OSError) else f"the client failed: {error!r}"
    lost = ConnectionLost(f"the connection is lost: {reason}")
    lost.__cause__ = error
    return lost
