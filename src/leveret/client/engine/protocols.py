"""Selection of the engine for a protocol."""

from __future__ import annotations

from typing import Final

from leveret.client.engine.amqp09.connection import Amqp09ConnectionCore
from leveret.client.engine.amqp091.connection import ConnectionCore
from leveret.client.engine.amqp10.connection.connection import Amqp10ConnectionCore
from leveret.client.engine.common.connection import BaseConnectionCore
from leveret.client.engine.common.frontend import FrontEnd
from leveret.client.errors import ProtocolMismatch
from leveret.client.parameters import Parameters

_ENGINES: Final[dict[str, type[BaseConnectionCore]]] = {
    "0-9": Amqp09ConnectionCore,
    "0-9-1": ConnectionCore,
    "1.0": Amqp10ConnectionCore,
    "auto": ConnectionCore,
}


def new_core(frontend: FrontEnd, parameters: Parameters) -> BaseConnectionCore:
    """Return a new engine for the option `protocol`."""
    return _ENGINES[parameters.protocol](frontend, parameters)


def fallback_core(frontend: FrontEnd, parameters: Parameters, error: ProtocolMismatch) -> BaseConnectionCore:
    """Return an engine for AMQP 1.0 if the server speaks only that and the option `protocol` is "auto".

    Raises:
        ProtocolMismatch: The given error, if no other protocol can be used.
    """
    if parameters.protocol == "auto" and error.speaks == "1.0":
        return Amqp10ConnectionCore(frontend, parameters)
    raise error
