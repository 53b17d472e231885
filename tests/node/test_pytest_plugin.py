"""The fixtures of the pytest plugin, in a test session of a user."""

from __future__ import annotations

import tomllib
from importlib import import_module

import pytest

from tests.support.broker import ROOT

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "leveret.pytest_plugin", "-p", "no:cacheprovider")


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    # The plugin is imported from the sources, even if it is installed; other plugins only take time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


def run(session: pytest.Pytester, *arguments: str, **outcomes: int) -> pytest.RunResult:
    result = session.runpytest_subprocess(*PLUGIN, *arguments, timeout=240)
    result.assert_outcomes(**outcomes)
    return result


def test_it_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"leveret": "leveret.pytest_plugin"}
    assert import_module("leveret.pytest_plugin").leveret_url


def test_pika(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import pika
        import pytest

        @pytest.mark.parametrize("number", range(3))
        def test_every_test_begins_with_nothing(leveret_url, number):
            connection = pika.BlockingConnection(pika.URLParameters(leveret_url))
            channel = connection.channel()
            channel.confirm_delivery()
            assert channel.queue_declare("orders", durable=True).method.message_count == 0
            channel.basic_publish("", "orders", b"tea", pika.BasicProperties(delivery_mode=2), mandatory=True)
            assert channel.basic_get("orders")[2] == b"tea"
    """)
    run(session, passed=3)


def test_aio_pika(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import asyncio

        import aio_pika

        def test_in_an_event_loop(leveret_url):
            async def main():
                async with await aio_pika.connect_robust(leveret_url) as connection:
                    channel = await connection.channel()
                    queue = await channel.declare_queue("orders", durable=True)
                    await channel.default_exchange.publish(aio_pika.Message(b"tea"), "orders")
                    async with queue.iterator() as messages:
                        async for message in messages:
                            await message.ack()
                            return message.body
            assert asyncio.run(main()) == b"tea"
    """)
    run(session, passed=1)


def test_leftovers_of_a_test_are_removed(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import pika
        import pytest

        left = []

        def test_leaves_a_connection(leveret_url, leveret_vhost):
            assert leveret_url.endswith("/" + leveret_vhost)
            left.append((leveret_url, pika.BlockingConnection(pika.URLParameters(leveret_url))))

        def test_finds_it_closed():
            url, connection = left[0]
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="was deleted"):
                connection.channel()
            with pytest.raises(pika.exceptions.AMQPError):
                pika.BlockingConnection(pika.URLParameters(url))

        def test_may_delete_its_vhost_itself(leveret_broker, leveret_vhost):
            leveret_broker.delete_vhost(leveret_vhost)
    """)
    run(session, passed=3)


def test_users_of_a_test(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import pika
        import pytest

        def test_permissions(leveret_broker, leveret_vhost, leveret_url):
            leveret_broker.add_user("reader", "secret", vhosts=[leveret_vhost], configure="", write="")
            pika.BlockingConnection(pika.URLParameters(leveret_url)).channel().queue_declare("q")
            url = leveret_url.replace("guest:guest", "reader:secret")
            channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
            assert channel.basic_get("q")[0] is None
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
                channel.queue_delete("q")
    """)
    run(session, passed=1)


def test_another_broker_in_its_place(session: pytest.Pytester) -> None:
    session.makeconftest("""
        import leveret
        import pytest

        @pytest.fixture(scope="session")
        def leveret_broker(tmp_path_factory):
            with leveret.Broker(data_dir=tmp_path_factory.mktemp("leveret")) as broker:
                yield broker
    """)
    session.makepyfile("""
        import pika

        def test_it_is_this_one(leveret_broker, leveret_url):
            assert leveret_broker.data_dir is not None
            pika.BlockingConnection(pika.URLParameters(leveret_url)).close()
    """)
    run(session, passed=1)


def test_every_worker_has_a_broker(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import os

        import pika
        import pytest

        @pytest.mark.parametrize("number", range(8))
        def test_one(leveret_broker, leveret_url, number):
            pika.BlockingConnection(pika.URLParameters(leveret_url)).close()
            with open("ports", "a") as file:
                file.write(f"{os.getpid()} {leveret_broker.port}\\n")
    """)
    run(session, "-p", "xdist", "-n", "2", passed=8)
    lines = (session.path / "ports").read_text().splitlines()
    assert len(lines) == 8
    workers = {line.split()[0] for line in lines}
    assert len(set(lines)) == len({line.split()[1] for line in lines}) == len(workers)


def test_a_run_that_does_not_use_it_pays_nothing(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import sys
        import threading

        def test_nothing():
            assert "leveret.pytest_plugin" in sys.modules
            ours = {name for name in sys.modules if name.startswith("leveret")}
            assert ours == {
                "leveret", "leveret._build", "leveret._compiled", "leveret._isolation", "leveret.pytest_plugin"
            }
            assert "msgspec" not in sys.modules
            assert threading.active_count() == 1
    """)
    run(session, passed=1)


def test_a_broker_that_cannot_start_gives_the_reason(session: pytest.Pytester) -> None:
    session.makeconftest("""
        import leveret
        import pytest

        @pytest.fixture(scope="session")
        def leveret_broker():
            with leveret.Broker(host="no such host") as broker:
                yield broker
    """)
    session.makepyfile("def test_one(leveret_url): pass")
    run(session, errors=1).stdout.fnmatch_lines("*StartFailed: cannot resolve 'server.host' 'no such host'*")
