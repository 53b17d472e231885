"""Selection of the engine for a protocol, and unions of the engines' classes."""

from __future__ import annotations

from leveret.client.engine.amqp09.connection import Amqp09Connection
from leveret.client.engine.amqp091.channel import ChannelCore
from leveret.client.engine.amqp091.connection import ConnectionCore
from leveret.client.engine.amqp091.consumer import ConsumerCore
from leveret.client.engine.amqp10.channel import SessionCore
from leveret.client.engine.amqp10.connection import Amqp10Connection
from leveret.client.engine.amqp10.outgoing import Encoder as Amqp10Encoder
from leveret.client.engine.amqp10.receiver import ReceiverCore
from leveret.client.engine.common.encoding import Encoder
from leveret.client.engine.common.frontend import FrontEnd
from leveret.client.errors import ProtocolMismatch
from leveret.client.parameters import Parameters

AnyCore = ConnectionCore | Amqp10Connection
AnyChannelCore = ChannelCore | SessionCore
AnyConsumer = ConsumerCore | ReceiverCore
AnyEncoder = Encoder | Amqp10Encoder


def new_core(frontend: FrontEnd, parameters: Parameters) -> AnyCore:
    """Return a new engine for the option `protocol`."""
    if parameters.protocol == "1.0":
        return Amqp10Connection(frontend, parameters)
    return (Amqp09Connection if parameters.protocol == "0-9" else ConnectionCore)(frontend, parameters)


def fallback_core(frontend: FrontEnd, parameters: Parameters, error: ProtocolMismatch) -> AnyCore:
    """Return an engine for AMQP 1.0 if the server speaks only that and the option `protocol` is "auto".

    Raises:
        ProtocolMismatch: The given error, if no other protocol can be used.
    """
    if parameters.protocol == "auto" and error.speaks == "1.0":
        return Amqp10Connection(frontend, parameters)
    raise error
