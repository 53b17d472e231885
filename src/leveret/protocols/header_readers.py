"""Header readers by message format."""

from __future__ import annotations

from leveret.broker.broker import HeaderReader
from leveret.broker.message import FORMAT_AMQP0, FORMAT_AMQP1, FORMAT_BASIC_AMQP09, FORMAT_CLASS_AMQP09
from leveret.protocols.amqp09.contents.content import ClassHeaderReader
from leveret.protocols.amqp091.content import BasicHeaderReader
from leveret.protocols.convert.to_amqp0 import Amqp10HeaderReader


def header_readers() -> dict[int, HeaderReader]:
    basic = BasicHeaderReader()
    return {
        FORMAT_AMQP0: basic,
        FORMAT_BASIC_AMQP09: basic,
        FORMAT_CLASS_AMQP09: ClassHeaderReader(),
        FORMAT_AMQP1: Amqp10HeaderReader(),
    }
