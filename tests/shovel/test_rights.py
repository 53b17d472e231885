"""The rights of shovels: whose permissions they have, which destinations and files they may name, and what errors say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from msgspec import UNSET

import leveret
from leveret.broker import metadata
from leveret.broker.errors import AccessRefused
from leveret.broker.parameters import OPERATOR, UNKNOWN, Setter
from leveret.client.errors import Error
from leveret.security import tickets
from leveret.security.destinations import SPECIAL, Destinations
from leveret.security.users import UserStore
from leveret.shovel.definition import read_definition
from leveret.shovel.rights import Rights
from tests.shovel.test_shovels import call, channel_of, fill
from tests.support.polling import wait_until_async

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
USERS = {
    "root": {"password": "root", "tags": ["administrator"], "permissions": {"/": ALL, "a": ALL, "b": ALL}},
    "maker": {"password": "maker", "tags": ["policymaker"], "permissions": {"a": ALL}},
    "reader": {"password": "reader", "tags": ["policymaker"], "permissions": {"a": {**ALL, "read": "^mine$"}}},
    "guest": {"password": "guest", "tags": ["administrator"], "permissions": {"/": ALL, "a": ALL, "b": ALL}},
}
LOCAL = {"src-uri": "amqp:///a", "src-queue": "mine", "dest-uri": "amqp:///a", "dest-queue": "out"}


@pytest.fixture
def broker() -> Iterator[Any]:
    """A broker that has no user by default, and no user with every permission."""
    with leveret.Broker(config={"vhosts": {"/": {}, "a": {}, "b": {}}, "users": USERS}) as broker:
        yield broker


def set_shovel(broker: Any, user: str | None, **changes: Any) -> None:
    """Set a shovel as a user of the broker, or as an operator."""
    value = {**LOCAL, "reconnect-delay": 1, **{key.replace("_", "-"): item for key, item in changes.items()}}
    arguments = {"component": "shovel", "name": "s", "vhost": "a", "value": value}
    if user is not None:
        arguments["user"] = user
    call(broker, "parameters.set", **arguments)


def shovel(broker: Any) -> Any:
    """Return the only shovel; None before it has started."""
    return next(iter(call(broker, "shovels.list")), None)


def url(broker: Any, user: str, vhost: str) -> str:
    return f"amqp://{user}:{user}@{broker.url.partition('@')[2].partition('/')[0]}/{vhost}"


REFUSED = [
    # who sets it, what differs, and what is refused
    ("maker", {"src_uri": "amqp:///b"}, "access to vhost 'b' refused for user 'maker'"),
    ("maker", {"dest_uri": "amqp:///b"}, "access to vhost 'b' refused for user 'maker'"),
    ("maker", {"dest_uri": ["amqp:///a", "amqp:///b"]}, "access to vhost 'b' refused for user 'maker'"),
    ("maker", {"src_uri": "amqp://"}, "access to vhost '/' refused for user 'maker'"),
    ("maker", {"src_uri": "amqp:///b?auth_mechanism=anonymous"}, "access to vhost 'b' refused for user 'maker'"),
    ("maker", {"src_uri": "amqp:///b?user=guest&password=guest"}, "access to vhost 'b' refused for user 'maker'"),
    ("maker", {"src_uri": "amqp:///a?vhost=b"}, "access to vhost 'b' refused for user 'maker'"),
    ("maker", {"dest_uri": "amqp://u:p@far?host=127.0.0.1"}, "'dest-uri' has the host '127.0.0.1'"),
    ("maker", {"dest_uri": "amqps://u:p@far?ssl_options={'ca_certs':'/etc/shadow'}"}, "has the option 'cafile'"),
    ("maker", {"src_uri": "amqp://guest:guest@/b"}, "logs in as 'guest', who may log in from the local machine only"),
    ("maker", {"src_uri": "amqp://guest:guest@127.0.0.1/b"}, "'src-uri' has the host '127.0.0.1'"),
    ("maker", {"src_uri": "amqp://guest:guest@[::ffff:127.0.0.1]/b"}, "'src-uri' has the host '::ffff:127.0.0.1'"),
    ("maker", {"dest_uri": "amqp://u:p@169.254.169.254"}, "setting is management.shovel_networks"),
    ("maker", {"dest_uri": "amqp://u:p@[fe80::1]"}, "setting is management.shovel_networks"),
    ("maker", {"dest_uri": "amqps://u:p@far?cacertfile=/etc/shadow"}, "has the option 'cafile'"),
    ("maker", {"dest_uri": "amqps://u:p@far?certfile=/etc/shadow"}, "has the option 'certfile'"),
    ("maker", {"dest_uri": "amqps://u:p@far?certfile=a&keyfile=/etc/shadow"}, "has the option 'certfile'"),
    ("reader", {"src_queue": "other"}, "read access to 'other' in vhost 'a' refused for user 'reader'"),
    ("reader", {"src_queue": None, "src_exchange": "amq.topic"}, "read access to 'amq.topic' in vhost 'a' refused"),
    ("missing", {}, "user 'missing', for whom the shovel acts, does not exist"),
    ("", {}, "set it again as a user of the broker"),
]


@pytest.mark.parametrize(("user", "changes", "reason"), REFUSED)
async def test_a_shovel_gets_nothing_that_its_user_cannot_reach(
    broker: Any, user: str, changes: dict[str, Any], reason: str
) -> None:
    given = {key: value for key, value in changes.items() if value is not None}
    removed = {key for key, value in changes.items() if value is None}
    value = {key: item for key, item in LOCAL.items() if key.replace("-", "_") not in removed}
    value |= {key.replace("_", "-"): item for key, item in given.items()}
    with pytest.raises(Exception, match="shovel 's'") as refused:
        call(broker, "parameters.set", component="shovel", name="s", vhost="a", value=value, user=user)
    assert reason in str(refused.value)
    assert list(call(broker, "parameters.list", component="shovel")) == []


@pytest.mark.parametrize("protocol", ["amqp091", "amqp10"])
@pytest.mark.parametrize("user", ["maker", "root", None])
async def test_a_shovel_acts_for_its_user(broker: Any, user: str | None, protocol: str) -> None:
    await fill(url(broker, "root", "a"), "mine", 3)
    async with channel_of(url(broker, "root", "a")) as channel:
        await channel.declare_queue("out", durable=True)
    ends = {} if protocol == "amqp091" else {"dest_protocol": protocol, "dest_address": "/queues/out", "dest_queue": None}
    value = {**LOCAL, **{key.replace("_", "-"): item for key, item in ends.items()}}
    value = {key: item for key, item in value.items() if item is not None}
    arguments = {} if user is None else {"user": user}
    call(broker, "parameters.set", component="shovel", name="s", vhost="a", value=value, **arguments)
    await wait_until_async(forwarded(broker, 3))
    users = {item.user for item in call(broker, "connections.list")}
    assert users == {user or tickets.OPERATOR.name}


def forwarded(broker: Any, count: int) -> Any:
    async def has_forwarded() -> bool:
        return bool(shovel(broker).forwarded == count)

    return has_forwarded


def says(broker: Any, text: str) -> Any:
    async def stopped() -> bool:
        found = shovel(broker)
        return bool(found is not None and found.state == "terminated" and text in found.error)

    return stopped


async def test_a_change_of_permissions_reaches_a_shovel_over_amqp10(broker: Any) -> None:
    call(broker, "users.add", name="u", password="u")
    call(broker, "permissions.set", user="u", vhost="a", **ALL)
    await fill(url(broker, "root", "a"), "mine", 3)
    value = {**LOCAL, "src-protocol": "amqp10", "src-address": "/queues/mine", "reconnect-delay": 1}
    del value["src-queue"]
    call(broker, "parameters.set", component="shovel", name="s", vhost="a", value=value, user="u")
    await wait_until_async(forwarded(broker, 3))
    call(broker, "permissions.set", user="u", vhost="a", **{**ALL, "read": "^x"})
    await wait_until_async(says(broker, "read access to 'mine' in vhost 'a' refused for user 'u'"))


async def test_a_shovel_stops_when_its_user_loses_permissions(broker: Any) -> None:
    call(broker, "users.add", name="u", password="u")
    call(broker, "permissions.set", user="u", vhost="a", **ALL)
    await fill(url(broker, "root", "a"), "mine", 3)
    set_shovel(broker, "u")
    await wait_until_async(forwarded(broker, 3))
    call(broker, "permissions.set", user="u", vhost="a", **{**ALL, "read": "^x"})
    await wait_until_async(says(broker, "read access to 'mine' in vhost 'a' refused for user 'u'"))
    call(broker, "permissions.set", user="u", vhost="a", **ALL)
    await wait_until_async(running(broker))
    call(broker, "permissions.delete", user="u", vhost="a")
    await wait_until_async(says(broker, "access to vhost 'a' refused for user 'u'"))
    call(broker, "permissions.set", user="u", vhost="a", **ALL)
    await wait_until_async(running(broker))
    call(broker, "users.delete", name="u")
    await wait_until_async(says(broker, "user 'u', for whom the shovel acts, was deleted"))


def running(broker: Any) -> Any:
    async def is_running() -> bool:
        found = shovel(broker)
        return bool(found is not None and found.state == "running")

    return is_running


@pytest.mark.parametrize("is_remote", [True, False])
async def test_a_new_user_does_not_inherit_the_shovels_of_a_deleted_one(tmp_path: Any, is_remote: bool) -> None:
    users = {name: user for name, user in USERS.items() if name == "root"}
    config = {"vhosts": {"a": {}}, "users": users, "management": {"shovel_networks": ["127.0.0.1/32"]}}
    deleted = "user 'u', for whom the shovel acts, was deleted; set it again"

    def add_user(broker: Any) -> None:
        call(broker, "users.add", name="u", password="u", tags=["administrator"])
        call(broker, "permissions.set", user="u", vhost="a", **ALL)

    with leveret.Broker(data_dir=tmp_path, config=config) as broker, leveret.Broker() as far:
        add_user(broker)
        place = far.url.rstrip("/") + "/%2F"
        value = {"src_uri": place, "dest_uri": place} if is_remote else {}
        set_shovel(broker, "u", **value)
        await wait_until_async(running(broker))
        call(broker, "users.delete", name="u")
        add_user(broker)
        await wait_until_async(says(broker, deleted))
        call(broker, "shovels.restart", vhost="a", name="s")
        await wait_until_async(says(broker, deleted))
    with leveret.Broker(data_dir=tmp_path, config=config) as broker, leveret.Broker() as far:
        await wait_until_async(says(broker, deleted))
        place = far.url.rstrip("/") + "/%2F"
        set_shovel(broker, "u", **({"src_uri": place, "dest_uri": place} if is_remote else {}))
        await wait_until_async(running(broker))


async def test_a_user_who_was_deleted_while_the_shovel_was_not_served_is_deleted(tmp_path: Any) -> None:
    config = {"vhosts": {"a": {}}, "users": {name: user for name, user in USERS.items() if name != "maker"}}
    for users in (USERS, config["users"], USERS):
        with leveret.Broker(data_dir=tmp_path, config={**config, "users": users}) as broker:
            if list(call(broker, "parameters.list", component="shovel")):
                await wait_until_async(says(broker, "user 'maker', for whom the shovel acts, was deleted"))
            else:
                set_shovel(broker, "maker")
                await wait_until_async(running(broker))


async def test_a_shovel_of_a_former_administrator_loses_its_destination(broker: Any) -> None:
    call(broker, "users.add", name="u", password="u", tags=["administrator"])
    set_shovel(broker, "u", src_uri=url(broker, "root", "a"), dest_uri=url(broker, "root", "a"))
    await wait_until_async(running(broker))
    call(broker, "users.change", name="u", tags=["policymaker"])
    await wait_until_async(says(broker, "management.shovel_networks"))


async def test_the_user_is_kept_over_a_restart(tmp_path: Any) -> None:
    config = {"vhosts": {"a": {}, "b": {}}, "users": USERS}
    for started in range(2):
        with leveret.Broker(data_dir=tmp_path, config=config) as broker:
            if not started:
                set_shovel(broker, "maker")
            await wait_until_async(running(broker))
            [parameter] = call(broker, "parameters.list", component="shovel")
            assert parameter.user == "maker"


async def test_a_shovel_of_an_earlier_version_says_how_to_mend_it(tmp_path: Any) -> None:
    config = {"vhosts": {"a": {}, "b": {}}, "users": USERS}
    with leveret.Broker(data_dir=tmp_path, config=config) as broker:
        set_shovel(broker, "maker")
        record = metadata.pack({"version": 1, "value": LOCAL})
        broker._thread.run(_put(broker, metadata.make_key("a", "shovel", "s"), record))
    with leveret.Broker(data_dir=tmp_path, config=config) as broker:
        await wait_until_async(says(broker, "set by an earlier version"))
        set_shovel(broker, "maker")
        await wait_until_async(running(broker))


async def _put(broker: Any, key: str, record: bytes) -> None:
    composition = broker._node._composition
    composition.log.put(metadata.PARAMETER, key, record)
    await composition.admin.committed()


async def test_a_shovel_that_is_set_again_keeps_a_user_who_exists(broker: Any) -> None:
    """A user who lacks a permission may get it again. One who was deleted, or is unknown, cannot run the shovel."""
    credentials = {"src-uri": "amqp://root:root@/a", "dest-uri": "amqp://root:root@/a"}
    for user, changes, kept in (
        ("limited", {}, True),
        ("deleted", {}, False),
        ("deleted", credentials, False),
        ("", credentials, True),
        (None, {}, True),
    ):
        for name in ("limited", "deleted"):
            call(broker, "users.add", name=name, password=name)
            call(broker, "permissions.set", user=name, vhost="a", **ALL)
        given = {} if user is None else {"user": user}
        arguments = {"component": "shovel", "name": "s", "vhost": "a", "value": {**LOCAL, **changes}}
        call(broker, "parameters.set", **arguments, **given)
        call(broker, "permissions.set", user="limited", vhost="a", **{**ALL, "read": "^x"})
        call(broker, "users.delete", name="deleted")
        assert not call(broker, "parameters.set", **arguments).created
        shown = call(broker, "parameters.show", component="shovel", name="s", vhost="a")
        assert shown.user == (user if kept and user is not None else UNSET), (user, changes)
        call(broker, "parameters.delete", component="shovel", name="s", vhost="a")
        call(broker, "users.delete", name="limited")


async def test_a_static_shovel_acts_for_its_user() -> None:
    shovels = {"s": {"vhost": "a", "user": "reader", "src_uri": "amqp:///a", "src_queue": "other", "dest_uri": "amqp:///a"}}
    shovels["s"]["reconnect_delay"] = 1
    with leveret.Broker(config={"vhosts": {"a": {}}, "users": USERS, "shovels": shovels}) as broker:
        await wait_until_async(says(broker, "read access to 'other' in vhost 'a' refused for user 'reader'"))


async def test_a_uri_with_a_host_needs_a_user(broker: Any) -> None:
    """The broker never logs in with a default password."""
    place = broker.url.partition("@")[2].partition("/")[0]
    set_shovel(broker, None, src_uri=f"amqp://{place}/a")
    await wait_until_async(says(broker, "'src-uri' has no user for"))
    set_shovel(broker, None, src_uri=[f"amqp://{place}/a", "amqp:///a"])
    await wait_until_async(running(broker))


@contextlib.asynccontextmanager
async def service(answer: bytes) -> AsyncIterator[int]:
    """A server that answers each connection with these bytes."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with contextlib.suppress(OSError):
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("protocol", ["amqp091", "amqp10"])
@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-SECRETVERSION\r\n",
        b"HTTP/1.1 400 SECRET\r\n\r\n",
        b"AMQPSECRETSECRET",
        b"AMQP\x00\x01\x00\x00SECRETSECRET",
        b"AMQP\x03\x01\x00\x00SECRETSECRET",
        b"\x01\x00\x00\x00\x00\x00\x08\x00\x0aSECRETSECRET",
        b"\x08\x00\x00\x00\x00\x00\x06SECRETSECRET",
        b"",
    ],
)
async def test_an_error_quotes_no_bytes_of_another_service(broker: Any, answer: bytes, protocol: str) -> None:
    async with service(answer) as port:
        source = {"src_uri": f"amqp://u:p@127.0.0.1:{port}", "src_protocol": protocol}
        source |= {"src_address": "/queues/x", "src_queue": None} if protocol == "amqp10" else {}
        value = {**LOCAL, **{key.replace("_", "-"): item for key, item in source.items()}, "reconnect-delay": 0}
        value = {key: item for key, item in value.items() if item is not None}
        call(broker, "parameters.set", component="shovel", name="s", vhost="a", value=value)
        await wait_until_async(says(broker, str(port)))
        error = shovel(broker).error
    assert "SECRET" not in error and "83" not in error.replace(str(port), ""), error


def local_address() -> tuple[str, int]:
    return "127.0.0.1", 5672


async def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to an address that was checked, whatever the name resolves to later."""
    answers = iter([["169.254.169.254", "192.0.2.7"], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "far.example"
        return next(answers)

    monkeypatch.setattr("leveret.shovel.rights.resolve", resolve)
    rights = Rights(UserStore(), UNKNOWN, False, local_address, Destinations((), SPECIAL))
    definition = read_definition("s", {**LOCAL, "src-uri": "amqps://u:p@far.example"})
    [(parameters, uri)] = await rights.hosts("src", definition.source, "")
    assert (parameters.host, parameters.tls_name, uri) == ("192.0.2.7", "far.example", "amqps://u:p@far.example")
    with pytest.raises(AccessRefused, match=r"management\.shovel_networks"):
        await rights.hosts("src", definition.source, "")


@pytest.mark.parametrize(
    ("networks", "allowed", "refused"),
    [
        (
            (),
            ["10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:db8::1", "fd00::1"],
            [
                *(
                    "127.0.0.1",
                    "127.9.9.9",
                    "0.0.0.0",
                    "169.254.169.254",
                    "224.0.0.1",
                    "255.255.255.255",
                    "100.100.100.200",
                ),
                *("168.63.129.16", "::1", "::", "fe80::1", "fe80::1%eth0", "ff02::1", "fd00:ec2::254"),
                *("::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::169.254.169.254", "2002:7f00:1::"),
            ],
        ),
        (
            ("10.1.0.0/16", "127.0.0.1/32"),
            ["10.1.2.3", "127.0.0.1", "::ffff:10.1.2.3"],
            ["10.2.0.1", "127.0.0.2", "8.8.8.8"],
        ),
    ],
)
def test_destinations(networks: tuple[str, ...], allowed: list[str], refused: list[str]) -> None:
    destinations = Destinations(networks, SPECIAL)
    assert [address for address in allowed if not destinations.allows(address)] == []
    assert [address for address in refused if destinations.allows(address)] == []


def test_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = b"s" * 32
    ticket = tickets.issue(secret, "u")
    account = tickets.open_ticket(secret, ticket)
    assert account is not None and (account.name, account.scopes) == ("u", None)
    assert tickets.open_ticket(secret, tickets.issue(secret, None)) is tickets.OPERATOR
    for forged in (b"", ticket[:-1], ticket + b"x", b"\0" + ticket[1:], ticket.replace(b"u", b"v")):
        assert tickets.open_ticket(secret, forged) is None
    assert tickets.open_ticket(b"t" * 32, ticket) is None
    monkeypatch.setattr(tickets, "VALIDITY", 0.0)
    assert tickets.open_ticket(secret, tickets.issue(secret, "u")) is None


async def test_a_forged_ticket_is_refused(broker: Any) -> None:
    from leveret.client.url import parse_url
    from leveret.shovel.uris import with_ticket

    for ticket in (b"", b"x" * 60, tickets.issue(b"y" * 32, "root")):
        parameters = with_ticket(parse_url(url(broker, "root", "a")), "root", ticket)
        with pytest.raises(Error, match="refused"):
            from leveret.client._async.connection import open_connection

            await open_connection([parameters])


def test_the_rights_of_setters() -> None:
    users = UserStore()
    for setter, trusted in ((OPERATOR, True), (UNKNOWN, False), (Setter("guest"), True), (Setter("missing"), False)):
        assert Rights(users, setter, False, local_address, Destinations(())).is_trusted() is trusted
        assert Rights(users, setter, True, local_address, Destinations(())).is_trusted()
