"""pika's asynchronous connection: everything in callbacks, with publishes and confirms concurrently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from pika import SelectConnection
from pika.channel import Channel

from tests.support.broker import Broker

WITHIN = 120.0


class Script:
    """Runs a SelectConnection until `finish` is called; an exception or the timeout ends the test."""

    def __init__(self, broker: Broker, on_channel: Callable[[Script, Channel], None], **options: Any) -> None:
        self.finished = False
        self.closing: Any = None
        self.channel_closing: Any = None
        parameters = pika.URLParameters(broker.url())
        for key, value in options.items():
            setattr(parameters, key, value)

        def on_open(connection: SelectConnection) -> None:
            connection.channel(on_open_callback=on_channel_open)

        def on_channel_open(channel: Channel) -> None:
            channel.add_on_close_callback(self.on_channel_closed)
            on_channel(self, channel)

        self.connection = SelectConnection(
            parameters,
            on_open_callback=on_open,
            on_open_error_callback=self.on_closed,
            on_close_callback=self.on_closed,
        )

    def on_channel_closed(self, channel: Channel, reason: Any) -> None:
        self.channel_closing = reason

    def on_closed(self, connection: SelectConnection, reason: Any) -> None:
        self.closing = reason
        connection.ioloop.stop()

    def finish(self) -> None:
        self.finished = True
        self.connection.close()

    def run(self) -> Script:
        timed_out = []

        def give_up() -> None:
            timed_out.append(True)
            self.connection.ioloop.stop()

        self.connection.ioloop.call_later(WITHIN, give_up)
        self.connection.ioloop.start()
        assert not timed_out, "the script did not finish"
        return self


def test_publish_and_consume_in_full_flight(broker: Broker, name: str) -> None:
    """A thousand publishes without waiting, confirms counted, deliveries acked on arrival."""
    total = 1000
    confirmed: set[int] = set()
    received: list[int] = []

    def on_channel(script: Script, channel: Channel) -> None:
        def on_confirm(frame: Any) -> None:
            assert isinstance(frame.method, pika.spec.Basic.Ack)
            first = 1 if frame.method.multiple else frame.method.delivery_tag
            confirmed.update(range(first, frame.method.delivery_tag + 1))
            check()

        def on_message(channel: Channel, method: Any, properties: Any, body: bytes) -> None:
            received.append(int(body))
            channel.basic_ack(method.delivery_tag)
            check()

        def check() -> None:
            if len(confirmed) == len(received) == total and not script.finished:
                script.finish()

        def go(_: Any) -> None:
            channel.basic_consume(name, on_message)
            for number in range(total):
                channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))

        channel.confirm_delivery(on_confirm)
        channel.basic_qos(prefetch_count=50)
        channel.queue_declare(name, exclusive=True, durable=True, callback=go)

    script = Script(broker, on_channel).run()
    assert script.finished
    assert script.closing.reply_code == 200
    assert received == list(range(total))
    assert confirmed == set(range(1, total + 1))


def test_no_wait(broker: Broker, name: str) -> None:
    """Methods with no-wait have no reply; the next reply is that of the next method."""
    bodies: list[bytes] = []

    def on_channel(script: Script, channel: Channel) -> None:
        def on_message(channel: Channel, method: Any, properties: Any, body: bytes) -> None:
            bodies.append(body)
            script.finish()

        # Without a callback pika sends no-wait.
        channel.exchange_declare(name, "fanout", auto_delete=True)
        channel.queue_declare(f"{name}.q", exclusive=True)
        channel.queue_bind(f"{name}.q", name)
        channel.queue_purge(f"{name}.q")
        channel.queue_declare(f"{name}.gone")
        channel.queue_delete(f"{name}.gone")
        channel.basic_consume(f"{name}.q", on_message, auto_ack=True)
        channel.basic_publish(name, "", b"through")

    assert Script(broker, on_channel).run().finished
    assert bodies == [b"through"]


def test_channel_error_is_reported(broker: Broker, name: str) -> None:
    def on_channel(script: Script, channel: Channel) -> None:
        channel.queue_declare(name, passive=True, callback=lambda _: None)
        channel.add_on_close_callback(lambda *_: script.finish())

    script = Script(broker, on_channel).run()
    assert script.channel_closing.reply_code == 404


def test_channel_flow_of_the_client(broker: Broker, name: str) -> None:
    """RabbitMQ answers flow (active) with flow-ok."""
    answers = []

    def on_channel(script: Script, channel: Channel) -> None:
        def on_flow(active: bool) -> None:
            answers.append(active)
            script.finish()

        channel.flow(True, on_flow)

    assert Script(broker, on_channel).run().finished
    assert answers == [True]


def test_heartbeats_keep_it_open(broker: Broker) -> None:
    def on_channel(script: Script, channel: Channel) -> None:
        script.connection.ioloop.call_later(3.5, script.finish)

    script = Script(broker, on_channel, heartbeat=1).run()
    assert script.finished
    assert script.closing.reply_code == 200
