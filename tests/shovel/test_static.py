"""Static shovels: those of the configuration."""

from __future__ import annotations

import pytest

import leveret
from leveret.node.errors import StartFailed
from tests.shovel.test_shovels import COUNT, call, channel_of, fill
from tests.support.polling import wait_until_async


async def test_a_static_shovel_moves_messages() -> None:
    with leveret.Broker() as far:
        shovel = {"src_uri": "amqp://", "src_queue": "in", "dest_uri": [far.url], "dest_queue": "out"}
        with leveret.Broker(config={"shovels": {"s": {**shovel, "dest_queue_args": {"x-max-length": 1000}}}}) as own:
            await fill(own.url, "in")

            async def has_moved() -> bool:
                return [shovel.forwarded for shovel in call(own, "shovels.list")] == [COUNT]

            await wait_until_async(has_moved)
            async with channel_of(far.url) as channel:
                found = [await channel.get("out", no_ack=True) for _ in range(COUNT)]
            assert [int(message.body) for message in found] == list(range(COUNT))
            [listed] = call(own, "shovels.list")
            assert (listed.name, listed.vhost, listed.type, listed.state) == ("s", "/", "static", "running")
            [queue] = call(far, "queues.list")
            assert queue.arguments.fields == {"x-max-length": 1000}
            call(own, "shovels.restart", name="s")

            async def is_running() -> bool:
                return bool(call(own, "shovels.show", name="s").state == "running")

            await wait_until_async(is_running)


async def test_a_static_shovel_runs_while_its_vhost_exists(caplog: pytest.LogCaptureFixture) -> None:
    shovel = {"vhost": "v", "src_uri": "amqp:///v", "src_queue": "in", "dest_uri": "amqp:///v", "dest_queue": "out"}
    with leveret.Broker(config={"shovels": {"s": shovel}}) as own:
        assert list(call(own, "shovels.list")) == []
        assert "'shovels.s.vhost' is 'v', which does not exist" in caplog.text
        call(own, "vhosts.add", name="v")
        assert [listed.name for listed in call(own, "shovels.list")] == ["s"]
        call(own, "vhosts.delete", name="v")
        assert list(call(own, "shovels.list")) == []


def test_the_start_fails_with_the_name_of_the_setting() -> None:
    config = {"shovels": {"s": {"src_uri": "amqp://", "src_queue": "in", "dest_uri": "amqp://", "dest_address": "a"}}}
    with pytest.raises(StartFailed, match=r"'shovels\.s\.dest_address' is unknown"), leveret.Broker(config=config):
        pass
