"""Messages with properties that the protocol of the destination cannot represent: they must not stop the shovel."""

from __future__ import annotations

from decimal import Decimal

import pytest

import leveret
from leveret.client.errors import InvalidMessage
from leveret.client.properties import Headers, Properties, encode_properties
from leveret.shovel.fitting import MAX_VALUES, encode_fitting
from leveret.wire.amqp10.values import ULong
from tests.shovel.test_shovels import Brokers, brokers, channel_of, drain

__all__ = ["brokers"]


async def test_properties_of_amqp091_over_amqp10(brokers: Brokers) -> None:
    """AMQP 1.0 has shorter expirations, symbols in ASCII, and text in Unicode."""
    async with channel_of(brokers.own.url) as own, channel_of(brokers.far.url) as far:
        await own.declare_queue("in", durable=True)
        await far.declare_queue("out", durable=True)
        await own.publish(
            b"0",
            "in",
            headers={"x-ü": 1, "odd": "\udcff", "nested": [{"\udcff": "a"}], "kept": 5},
            content_type="ü",
            content_encoding="gzip",
            message_id="\udcff",
            correlation_id="c",
            expiration=str(1 << 32),
            persistent=True,
        )
        await own.publish(b"1", "in")
    await brokers.shovel(src_queue="in", dest_protocol="amqp10", dest_address="/queues/out", reconnect_delay=0)
    first, second = await drain(brokers.far.url, "out", 2)
    assert first.headers == {"x-\\xfc": 1, "odd": "\ufffd", "nested": [{"\ufffd": "a"}], "kept": 5}
    properties = first.properties
    assert (properties.content_encoding, properties.correlation_id, properties.persistent) == ("gzip", "c", True)
    assert (properties.content_type, properties.message_id, properties.expiration) == (None, None, None)
    assert second.body == b"1"


async def test_properties_of_amqp10_over_amqp091(brokers: Brokers) -> None:
    """AMQP 0-9-1 has short strings of at most 255 bytes, signed integers, and no times before 1970."""
    async with channel_of(brokers.own.url) as own, leveret.connect(brokers.own.url, protocol="1.0") as connection:
        await own.declare_queue("in", durable=True)
        async with connection.session() as session:
            sender = await session.sender("/queues/in")
            large = ULong((1 << 64) - 1)
            await sender.send(
                b"0",
                message_id="i" * 256,
                creation_time=-5000,
                annotations={"x-nested": [large]},
                application_properties={"large": large, "k" * 256: 1, "kept": 5},
            )
            await sender.send(b"1")
    await brokers.shovel(src_protocol="amqp10", src_address="/queues/in", dest_queue="out", reconnect_delay=0)
    first, second = await drain(brokers.far.url, "out", 2)
    number = str((1 << 64) - 1)
    assert first.headers == {"x-nested": [number], "large": number, "kept": 5}
    assert (first.properties.message_id, first.properties.timestamp) == (None, None)
    assert second.body == b"1"


def test_what_fits_is_encoded_as_it_is() -> None:
    properties = Properties(headers={"a": 1}, message_id="m", priority=9)
    assert encode_fitting(properties, encode_properties) == encode_properties(properties)
    properties.headers = {"a": 1, "b": Decimal("NaN")}
    assert encode_fitting(properties, encode_properties) == encode_properties(
        Properties(headers={"a": 1, "b": "NaN"}, message_id="m", priority=9)
    )


@pytest.mark.parametrize("others", [dict.fromkeys(map(str, range(MAX_VALUES))), {"nested": [[1] * MAX_VALUES]}])
def test_too_many_values_are_an_error(others: Headers) -> None:
    """To try them takes too long."""
    with pytest.raises(InvalidMessage, match="large"):
        encode_fitting(Properties(headers={"large": 1 << 64, **others}), encode_properties)
