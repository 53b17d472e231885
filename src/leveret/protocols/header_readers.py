"""What the broker reads messages' headers with, by their format."""

from __future__ import annotations

from leveret.broker.broker import HeaderReader
from leveret.broker.message import FORMAT_AMQP0, FORMAT_AMQP1, FORMAT_BASIC_0_9, FORMAT_CLASS_0_9
from leveret.protocols.convert.to_amqp0 import Amqp1HeaderReader
from leveret.protocols.v0_9.content import ClassHeaderReader
from leveret.protocols.v0_9_1.content import BasicHeaderReader


def header_readers() -> dict[int, HeaderReader]:
    basic = BasicHeaderReader()
    return {FORMAT_AMQP0: basic, FORMAT_BASIC_0_9: basic, FORMAT_CLASS_0_9: ClassHeaderReader(),
            FORMAT_AMQP1: Amqp1HeaderReader()}
