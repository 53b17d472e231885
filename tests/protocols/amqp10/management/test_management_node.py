"""The management node: link pairs, requests and answers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from leveret.broker.log import Recovery
from leveret.broker.message import Message, make_address
from leveret.broker.queues.registry import SERVE_UNINDEXED
from leveret.management.operations import definitions
from leveret.protocols.amqp10.management import bindings
from leveret.protocols.amqp10.management.messages import MAX_VALUES, Request
from leveret.protocols.amqp10.management.router import PATHS
from leveret.security.permissions import Permission
from leveret.wire.amqp0.values import LongLong
from leveret.wire.amqp10 import message as sections_of
from leveret.wire.amqp10.messaging import Properties, Source, Target
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transport import Attach, Detach, Flow, Transfer
from leveret.wire.amqp10.values import Array, Byte, Float, Int, Short, Symbol, UByte, UInt, ULong, UShort
from tests.broker.support import HeldIndex, HeldLog
from tests.protocols.amqp10.support import Client, Receiver, Sender, Session, connect, make_site, message
from tests.protocols.support import Site

PAIRED = {Symbol("paired"): True}
SETTLED = 1


class Node:
    """Both links of a pair, and requests over them."""

    def __init__(self, session: Session, name: str = "pair", credit: int = 100) -> None:
        self.session = session
        self.client = session.client
        self.sender = requests(session, name)
        self.receiver = answers(session, name, credit)
        self.next = 0

    def send(self, method: str, path: str, body: Any = None, *, id: Any = None, run: bool = True) -> Any:
        self.next += 1
        id = f"request {self.next}" if id is None else id
        self.sender.send(request(method, path, body, id), settled=True, run=run)
        return id

    def answers(self) -> list[tuple[Properties, Any]]:
        return [read(frame.payload) for frame in self.client.all(Transfer)]

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body of the answer."""
        id = self.send(method, path, body)
        [(properties, value)] = self.answers()
        assert properties.correlation_id == id
        assert properties.subject is not None
        return int(properties.subject), value


def requests(session: Session, name: str = "pair", **options: Any) -> Sender:
    options = {"snd_settle_mode": SETTLED, "properties": PAIRED} | options
    return session.sender("/management", name, **options)


def answers(session: Session, name: str = "pair", credit: int = 100, **options: Any) -> Receiver:
    options = {"snd_settle_mode": SETTLED, "properties": PAIRED} | options
    return session.receiver("/management", credit, name, **options)


def request(method: str | None, path: str | None, body: Any = None, id: Any = "id", reply_to: str | None = "$me") -> bytes:
    return sections_of.encode_properties(
        Properties(id, to=path, subject=method, reply_to=reply_to)
    ) + sections_of.encode_body_value(body)


def as_table(value: Any) -> Any:
    """An argument as the client of 0-9-1 encodes it."""
    if isinstance(value, dict):
        return {name: as_table(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_table(item) for item in value]
    return LongLong(value) if type(value) is int else value


def types_of(value: Any) -> Any:
    """A value with the types of all that it contains."""
    if isinstance(value, dict):
        return {name: types_of(item) for name, item in value.items()}
    if isinstance(value, list):
        return [types_of(item) for item in value]
    return type(value), value


def read(payload: bytes) -> tuple[Properties, Any]:
    sections = split(payload)
    properties = sections_of.properties(sections)
    assert properties is not None
    assert sections_of.application_properties(sections) == {"http:response": "1.1"}
    [value] = sections_of.body(sections)
    return properties, value


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


@pytest.fixture
def node(session: Session) -> Node:
    return Node(session)


def test_requests_wait_until_all_messages_are_indexed(site: Site, node: Node) -> None:
    recovery = Recovery()
    rows = HeldIndex(recovery)
    indexing = site.broker.indexing
    indexing.begin(recovery, SERVE_UNINDEXED)
    indexing.start()
    node.send("PUT", "/queues/q", {"durable": True})
    node.send("GET", "/queues/q")
    assert node.answers() == [] and "q" not in site.vhost.queues
    assert rows.done is not None
    rows.done()
    node.client.run()
    assert [(found.subject, value["message_count"]) for found, value in node.answers()] == [("201", 0), ("200", 0)]


class TestLinkPair:
    def test_open_offers_it(self, site: Site) -> None:
        opened = Client(site).open()
        assert {"LINK_PAIR_V1_0", "ANONYMOUS-RELAY"} <= set(opened.offered_capabilities)
        assert opened.properties["product"] == "RabbitMQ"
        assert tuple(map(int, opened.properties["version"].split("."))) >= (4, 3, 0)
        assert opened.properties["platform"].startswith("Leveret ")
        assert opened.properties["node"] == opened.properties["cluster_name"]

    def test_properties_and_addresses_are_echoed(self, session: Session) -> None:
        properties = PAIRED | {Symbol("more"): "x"}
        sender = requests(session, properties=properties, source=Source("/management"))
        assert sender.attached.properties == properties
        assert sender.attached.target.address == sender.attached.source.address == "/management"
        assert sender.attached.snd_settle_mode == SETTLED
        receiver = answers(session, target=Target("mine"))
        assert receiver.attached.properties == PAIRED
        assert (receiver.attached.source.address, receiver.attached.target.address) == ("/management", "mine")

    def test_the_answers_may_be_attached_first(self, session: Session) -> None:
        answers(session)
        requests(session).send(request("GET", "/queues/none"), settled=True)
        [frame] = session.client.all(Transfer)
        assert frame.settled
        assert read(frame.payload)[0].subject == "404"

    def test_answers_wait_for_their_link_and_for_credit(self, session: Session) -> None:
        sender = requests(session)
        for number in range(3):
            sender.send(request("GET", "/queues/none", id=ULong(number)), settled=True)
        assert session.client.all(Transfer) == []
        receiver = answers(session, credit=0)
        assert session.client.all(Transfer) == []
        receiver.flow(2)
        assert [read(frame.payload)[0].correlation_id for frame in session.client.all(Transfer)] == [0, 1]
        receiver.flow(1, delivery_count=2)
        assert [read(frame.payload)[0].correlation_id for frame in session.client.all(Transfer)] == [2]

    def test_there_is_credit_for_as_many_requests_as_may_wait(self, session: Session) -> None:
        sender = requests(session)
        credit = sender.credit
        assert 0 < credit < 1000
        for _ in range(credit):
            sender.send(request("GET", "/queues/none"), settled=True, run=False)
        session.client.run()
        assert not any(flow.link_credit for flow in session.client.all(Flow) if flow.handle == sender.attached.handle)
        receiver = answers(session, credit=credit - 1)
        assert len(session.client.all(Transfer)) == credit - 1
        granted = [flow for flow in session.client.all(Flow) if flow.handle == sender.attached.handle]
        assert granted[-1].link_credit == credit - 1
        receiver.flow(1, delivery_count=credit - 1)
        assert len(session.client.all(Transfer)) == 1

    def test_more_than_that_ends_the_link_of_the_requests_only(self, session: Session) -> None:
        sender = requests(session)
        for _ in range(sender.credit + 1):
            sender.send(request("GET", "/queues/none"), settled=True, run=False)
        assert session.client.error(Detach)[0] == "amqp:link:transfer-limit-exceeded"
        session.sender().send()

    @pytest.mark.parametrize(
        "options",
        [{"properties": None}, {"properties": {Symbol("paired"): False}}, {"properties": {Symbol("paired"): "yes"}}],
        ids=["none", "false", "text"],
    )
    @pytest.mark.parametrize("half", [requests, answers], ids=["requests", "answers"])
    def test_links_without_the_property_are_refused(self, session: Session, half: Any, options: dict[str, Any]) -> None:
        link = half(session, **options)
        condition, text = session.client.error(Detach)
        assert condition == "amqp:invalid-field"
        assert "paired=true" in text
        assert (link.attached.target if half is requests else link.attached.source) is None

    @pytest.mark.parametrize("half", [requests, answers], ids=["requests", "answers"])
    def test_links_that_are_not_settled_are_refused(self, session: Session, half: Any) -> None:
        half(session, snd_settle_mode=0)
        condition, text = session.client.error(Detach)
        assert condition == "amqp:invalid-field"
        assert "settled" in text

    def test_the_property_has_no_meaning_elsewhere(self, site: Site, session: Session) -> None:
        sender = session.sender("q", "same", properties=PAIRED)
        sender.send()
        assert sender.outcomes() == [(0, 0, True, "Accepted")]
        receiver = session.receiver("q", 1, "same", properties=PAIRED)
        assert receiver.bodies() == [b"m"]

    def test_pairs_do_not_mix(self, session: Session) -> None:
        one = Node(session, "one")
        two = Node(session, "two")
        one.send("GET", "/queues/none", id="first")
        frames = session.client.all(Transfer)
        assert [frame.handle for frame in frames] == [one.receiver.attached.handle]
        two.send("GET", "/queues/none", id="second")
        frames = session.client.all(Transfer)
        assert [frame.handle for frame in frames] == [two.receiver.attached.handle]

    def test_a_response_link_may_be_attached_again(self, node: Node) -> None:
        node.receiver.detach()
        node.send("PUT", "/queues/q", {})
        node.receiver = answers(node.session)
        [(properties, _)] = node.answers()
        assert properties.subject == "201"

    def test_other_messages_do_not_reach_it(self, session: Session) -> None:
        relay = session.sender(None)
        relay.send(message(properties=Properties(to="/management")))
        assert relay.outcomes() == [(0, 0, True, "Rejected")]

    def test_a_long_response_is_sent_in_several_frames(self, site: Site) -> None:
        client = Client(site)
        client.open(max_frame_size=512)
        node = Node(client.begin())
        assert node.call("PUT", "/queues/q", {})[0] == 201
        for number in range(20):
            body = {
                "source": "amq.headers",
                "destination_queue": "q",
                "binding_key": "k",
                "arguments": {"number": number, "text": "x" * 100},
            }
            assert node.call("POST", "/bindings", body)[0] == 204
        node.send("GET", "/bindings?src=amq.headers&dstq=q&key=k")
        frames = client.all(Transfer)
        assert len(frames) > 4
        _, bindings = read(b"".join(frame.payload for frame in frames))
        assert [binding["arguments"]["number"] for binding in bindings] == list(range(20))

    def test_responses_without_credit_are_limited(self, site: Site, session: Session) -> None:
        site.vhost.declare_queue("q", None, arguments={"x-note": "x" * 300_000})
        node = Node(session)
        node.receiver.detach()
        for number in range(20):
            node.send("GET", "/queues/q", id=ULong(number))
        assert node.client.find(Detach) is None
        node.receiver = answers(session, credit=30)
        session.client.send(Flow(1 << 20, 0, 1000, 0, channel=0))
        session.client.run()
        statuses = []
        payload = b""
        for frame in session.client.all(Transfer):
            payload += frame.payload
            if not frame.more:
                statuses.append(read(payload)[0].subject)
                payload = b""
        # Once there are 4 MiB, the others are refused, in their order and with their ids.
        assert statuses == ["200"] * 14 + ["503"] * 6
        assert node.call("GET", "/queues/none")[0] == 404

    def test_nor_those_of_many_pairs_together(self, site: Site, session: Session) -> None:
        site.vhost.declare_queue("q", None, arguments={"x-note": "x" * 300_000})
        nodes = [Node(session, f"pair {number}") for number in range(5)]
        for node in nodes:
            node.receiver.detach()
            for number in range(4):
                node.send("GET", "/queues/q", id=ULong(number))
        session.client.send(Flow(1 << 20, 0, 1000, 0, channel=0))
        statuses = []
        for number, node in enumerate(nodes):
            node.receiver = answers(session, f"pair {number}", credit=30)
            session.client.run()
            payload = b""
            for frame in session.client.all(Transfer):
                payload += frame.payload
                if not frame.more:
                    statuses.append(read(payload)[0].subject)
                    payload = b""
        assert statuses == ["200"] * 14 + ["503"] * 6

    @pytest.mark.parametrize("first", ["requests", "answers"])
    def test_responses_of_a_closed_pair_no_longer_count(self, site: Site, session: Session, first: str) -> None:
        site.vhost.declare_queue("q", None, arguments={"x-note": "x" * 300_000})
        left = Node(session, "left", credit=1)
        for number in range(20):
            left.send("GET", "/queues/q", id=ULong(number))
        for link in (left.sender, left.receiver) if first == "requests" else (left.receiver, left.sender):
            link.detach()
        session.client.received.clear()
        assert Node(session, "other").call("GET", "/queues/none")[0] == 404

    def test_nor_do_the_answers_of_a_session_that_has_ended(self, site: Site) -> None:
        site.vhost.declare_queue("q", None, arguments={"x-note": "x" * 300_000})
        client = connect(site)
        client.begin(1)
        session = client.begin()
        node = Node(session, credit=1)
        for number in range(20):
            node.send("GET", "/queues/q", id=ULong(number))
        session.end()
        client.received.clear()
        assert Node(client.begin()).call("GET", "/queues/none")[0] == 404

    def test_requests_are_accepted_during_an_alarm(self, site: Site, session: Session) -> None:
        node = Node(session, credit=1000)
        assert node.call("PUT", "/queues/q", {})[0] == 201
        site.services.set_alarm("memory")
        for _ in range(node.sender.credit * 2):
            assert node.call("DELETE", "/queues/q/messages")[0] == 200


class TestRequests:
    @pytest.mark.parametrize("id", ["text", ULong(7), b"octets", UUID(int=5)], ids=["string", "ulong", "binary", "uuid"])
    def test_the_id_keeps_its_type(self, node: Node, id: Any) -> None:
        node.send("GET", "/queues/q", id=id)
        [(properties, _)] = node.answers()
        assert properties.correlation_id == id
        assert type(properties.correlation_id) is type(id)

    @pytest.mark.parametrize(
        ("payload", "says"),
        [
            (b"", "no properties"),
            (b"\x00\x53", "cannot be read"),
            (b"\x00\x53\x73\xc0\x02\x01\x54", "cannot be read"),
            (request(None, "/queues/q"), "a method in 'subject'"),
            (request("GET", None), "a path in 'to'"),
            (request("GET", "/queues/q", reply_to=None), "expected '$me'"),
            (request("GET", "queues/q"), "begin with '/'"),
            (request("GET", "/bindings?src=%ff&dstq=q&key="), "UTF-8"),
            (request("GET", "/queues/%ff"), "UTF-8"),
            (request("PUT", "/queues/a%0ab", {}), "line feed or carriage return"),
            (message(b"{}", properties=Properties("id", to="/queues/q", subject="PUT", reply_to="$me")), "amqp-value"),
        ],
        ids=[
            "empty",
            "cut",
            "malformed",
            "no method",
            "no path",
            "no reply-to",
            "relative",
            "query",
            "octets",
            "lines",
            "data",
        ],
    )
    def test_an_invalid_request_gets_a_response(self, node: Node, payload: bytes, says: str) -> None:
        node.sender.send(payload or b"\x00\x53\x77\x40", settled=True)
        [(properties, text)] = node.answers()
        assert properties.subject == "400"
        assert says in text
        assert node.call("GET", "/queues/q")[0] == 404

    def test_the_order_of_the_sections_does_not_matter(self, node: Node) -> None:
        node.sender.send(
            b"\x00\x53\x77\x40"
            + sections_of.encode_properties(Properties("id", to="/queues/q", subject="GET", reply_to="$me")),
            settled=True,
        )
        [(properties, _)] = node.answers()
        assert (properties.subject, properties.correlation_id) == ("404", "id")

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/", 404),
            ("GET", "/queues", 404),
            ("GET", "/vhosts/x", 404),
            ("PUT", "/queues/q/messages", 405),
            ("POST", "/queues/q", 405),
            ("GET", "/exchanges/x", 405),
            ("get", "/queues/q", 405),
        ],
        ids=lambda value: str(value).replace("/", "_"),
    )
    def test_unknown_paths_and_methods(self, node: Node, method: str, path: str, status: int) -> None:
        found, text = node.call(method, path)
        assert found == status
        assert "expected" in text

    def test_a_failure_of_the_broker_is_an_answer(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PATHS["queues", "*"], "GET", lambda *arguments: 1 / 0)
        status, text = node.call("GET", "/queues/q")
        monkeypatch.undo()
        assert (status, text) == (500, "internal error; see the broker's log")
        assert node.call("GET", "/queues/q")[0] == 404

    def test_too_large_a_request_ends_its_link(self, session: Session) -> None:
        sender = requests(session)
        assert sender.attached.max_message_size == 1 << 20
        sender.send(b"x" * ((1 << 20) + 1), settled=True)
        assert session.client.error(Detach)[0] == "amqp:link:message-size-exceeded"


class TestQueues:
    def test_declare_show_and_delete(self, site: Site, node: Node) -> None:
        arguments = {"x-queue-type": "quorum", "x-max-length": UInt(5)}
        status, described = node.call("PUT", "/queues/a%2Fb%20%C3%BC", {"arguments": arguments})
        assert status == 201
        assert site.vhost.queues["a/b ü"].durable
        name = described["leader"]
        assert described == {
            "name": "a/b ü",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "exclusive": False,
            "type": "quorum",
            "arguments": {"x-queue-type": "quorum", "x-max-length": 5},
            "leader": name,
            "replicas": Array("string", [name]),
            "message_count": 0,
            "consumer_count": 0,
        }
        assert type(described["message_count"]) is ULong
        assert type(described["consumer_count"]) is UInt
        assert node.call("PUT", "/queues/a%2Fb%20%C3%BC", {"arguments": arguments}) == (200, described)
        sender = node.session.sender("/queues/a%2Fb%20%C3%BC")
        sender.send(settled=True)
        node.session.receiver("/queues/a%2Fb%20%C3%BC")
        status, described = node.call("GET", "/queues/a%2Fb%20%C3%BC")
        assert (status, described["message_count"], described["consumer_count"]) == (200, 1, 1)
        assert node.call("DELETE", "/queues/a%2Fb%20%C3%BC") == (200, {"message_count": 1})
        assert node.call("GET", "/queues/a%2Fb%20%C3%BC")[0] == 404
        assert node.call("DELETE", "/queues/a%2Fb%20%C3%BC") == (200, {"message_count": 0})

    @pytest.mark.parametrize("origin", ["1.0", "0-9-1"])
    def test_arguments_keep_their_types(self, origin: str) -> None:
        held = HeldLog()
        site = make_site(log=held)
        numbers = {"int": Int(1000), "long": 1000, "double": 2.5}
        if origin == "1.0":
            numbers |= {"byte": Byte(-1), "ubyte": UByte(1), "short": Short(-1), "ushort": UShort(1), "uint": UInt(1)}
            numbers |= {"ulong": ULong(1), "float": Float(0.5)}
        arguments = {**numbers, "text": "a", "bool": True, "list": list(numbers.values()), "map": numbers}
        node = Node(connect(site).begin())
        if origin == "1.0":
            assert node.call("PUT", "/queues/q", {"arguments": arguments})[0] == 201
            body = {"source": "amq.headers", "destination_queue": "q", "arguments": arguments}
            assert node.call("POST", "/bindings", body)[0] == 204
        else:
            table = {name: as_table(value) for name, value in arguments.items()}
            channel = site.channel()
            channel.declare("q", durable=True, arguments=table)
            channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="amq.headers", arguments=table)
        for again in (False, True):
            if again:
                log, recovery = held.recovery()
                site = make_site(log=log)
                site.broker.recover(recovery)
                site.run()
                node = Node(connect(site).begin())
            assert types_of(node.call("GET", "/queues/q")[1]["arguments"]) == types_of(arguments)
            [binding] = node.call("GET", "/bindings?src=amq.headers&dstq=q&key=")[1]
            assert types_of(binding["arguments"]) == types_of(arguments)
        # Equal values of other types are the same queue and the same binding.
        plain = {**arguments, "int": 1000, "long": Int(1000)}
        assert node.call("PUT", "/queues/q", {"arguments": plain})[0] == 200
        site.vhost.unbind(site.vhost.queues["q"], "amq.headers", "", site.vhost.queues["q"].arguments | {"int": 1000})
        assert node.call("GET", "/bindings?src=amq.headers&dstq=q&key=") == (200, [])

    def test_numbers_without_a_type_are_ints_if_they_fit(self, site: Site, node: Node) -> None:
        site.vhost.declare_queue("q", None, arguments={"small": 1, "large": 1 << 31, "list": [1]})
        shown = node.call("GET", "/queues/q")[1]["arguments"]
        assert types_of(shown) == types_of({"small": Int(1), "large": 1 << 31, "list": [Int(1)]})

    def test_a_different_one_is_a_conflict(self, node: Node) -> None:
        assert node.call("PUT", "/queues/q", {"durable": False})[0] == 201
        status, text = node.call("PUT", "/queues/q", {})
        assert status == 409
        assert "inequivalent arg 'durable'" in text

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            (None, "a map"),
            ([], "a map"),
            ({"durable": "yes"}, "true or false"),
            ({"color": "red"}, "'color'"),
            ({1: True}, "1"),
            ({"arguments": []}, "a map"),
            ({"arguments": {7: 1}}, "7"),
            ({"arguments": {"x-max-length": "many"}}, "x-max-length"),
            ({"arguments": {"x-queue-type": "heap"}}, "expected one of classic, quorum, stream"),
            ({"exclusive": True, "arguments": {"x-queue-type": "quorum"}}, "exclusive=true"),
        ],
        ids=["null", "list", "string", "unknown", "key", "arguments", "argument", "value", "type", "exclusive quorum"],
    )
    def test_bad_declarations(self, site: Site, node: Node, body: Any, says: str) -> None:
        status, text = node.call("PUT", "/queues/q", body)
        assert status == 400
        assert says in text
        assert "q" not in site.vhost.queues

    @pytest.mark.parametrize(
        ("path", "status"),
        [("/queues/", 400), ("/queues/amq.mine", 403), ("/queues/" + "x" * 256, 400)],
        ids=["empty", "reserved", "long"],
    )
    def test_bad_names(self, node: Node, path: str, status: int) -> None:
        assert node.call("PUT", path, {})[0] == status

    def test_purge(self, site: Site, node: Node) -> None:
        assert node.call("DELETE", "/queues/q/messages")[0] == 404
        node.call("PUT", "/queues/q", {})
        sender = node.session.sender("/queues/q")
        for _ in range(3):
            sender.send(message(durable=True), settled=True)
        assert node.call("DELETE", "/queues/q/messages") == (200, {"message_count": 3})
        assert site.vhost.queues["q"].ready_count == 0

    def test_streams(self, node: Node) -> None:
        status, described = node.call("PUT", "/queues/s", {"arguments": {"x-queue-type": "stream"}})
        assert (status, described["type"]) == (201, "stream")
        status, text = node.call("DELETE", "/queues/s/messages")
        assert status == 400
        assert "not purged" in text
        assert node.call("DELETE", "/queues/s")[0] == 200

    def test_exclusive_queues_belong_to_the_connection(self, site: Site, node: Node) -> None:
        assert node.call("PUT", "/queues/mine", {"exclusive": True, "durable": False})[0] == 201
        other = Node(connect(site, container="other").begin())
        status, described = other.call("GET", "/queues/mine")
        assert (status, described["exclusive"]) == (200, True)
        for method, path, body in (
            ("PUT", "/queues/mine", {"exclusive": True}),
            ("DELETE", "/queues/mine", None),
            ("DELETE", "/queues/mine/messages", None),
        ):
            status, text = other.call(method, path, body)
            assert status == 400
            assert "locked" in text
        node.client.drop()
        assert "mine" not in site.vhost.queues

    @pytest.mark.parametrize("count", [0, 10_000])
    @pytest.mark.parametrize("durable", [False, True])
    def test_links_to_a_deleted_queue_end_after_the_response(
        self, site: Site, node: Node, count: int, durable: bool
    ) -> None:
        node.call("PUT", "/queues/q", {"durable": durable})
        queue = site.vhost.queues["q"]
        for _ in range(count):
            queue.push(Message(make_address("", "q"), b"", b"m", 1, durable))
        receiver = node.session.receiver("/queues/q", 1)
        sender = node.session.sender("/queues/q", "sender")
        node.client.received.clear()
        node.send("DELETE", "/queues/q")
        kinds = [type(frame).__name__ for frame in node.client.received if isinstance(frame, (Transfer, Detach))]
        assert kinds == ["Transfer", "Detach", "Detach"]
        assert not site.broker.jobs.removals.pending and node.client.session.responses.detaching is None
        detached = {frame.handle for frame in node.client.all(Detach)}
        assert detached == {receiver.attached.handle, sender.attached.handle}

    def test_a_sender_to_a_deleted_exchange_ends_after_the_response(self, node: Node) -> None:
        node.call("PUT", "/exchanges/x", {})
        sender = node.session.sender("/exchanges/x/k", "sender")
        node.client.received.clear()
        node.send("DELETE", "/exchanges/x")
        kinds = [type(frame).__name__ for frame in node.client.received if isinstance(frame, (Transfer, Detach))]
        assert kinds == ["Transfer", "Detach"]
        assert node.client.take(Detach).handle == sender.attached.handle

    def test_answers_wait_until_the_log_has_it(self) -> None:
        held = HeldLog()
        site = make_site(log=held)
        node = Node(connect(site).begin())
        assert node.call("PUT", "/queues/transient", {"durable": False})[0] == 201
        held.held = True
        node.send("PUT", "/queues/kept", {})
        node.send("GET", "/queues/kept")
        assert node.answers() == []
        held.release()
        assert [properties.subject for properties, _ in node.answers()] == ["201", "200"]


class TestExchangesAndBindings:
    def test_exchanges(self, site: Site, node: Node) -> None:
        body = {"type": "topic", "durable": False, "auto_delete": False, "internal": True, "arguments": {}}
        assert node.call("PUT", "/exchanges/x%2Fy", body) == (204, None)
        assert site.vhost.exchanges["x/y"].type == "topic"
        assert node.call("PUT", "/exchanges/x%2Fy", body) == (204, None)
        assert node.call("PUT", "/exchanges/x%2Fy", {"type": "topic"})[0] == 409
        assert node.call("PUT", "/exchanges/x%2Fy", {"type": "fanout"})[0] == 409
        assert node.call("DELETE", "/exchanges/x%2Fy") == (204, None)
        assert "x/y" not in site.vhost.exchanges
        assert node.call("DELETE", "/exchanges/x%2Fy") == (204, None)

    def test_defaults_of_exchanges(self, site: Site, node: Node) -> None:
        assert node.call("PUT", "/exchanges/x", {}) == (204, None)
        exchange = site.vhost.exchanges["x"]
        assert (exchange.type, exchange.durable, exchange.auto_delete, exchange.internal) == ("direct", True, False, False)

    @pytest.mark.parametrize(
        ("path", "body", "status"),
        [
            ("/exchanges/x", {"type": "strange"}, 400),
            ("/exchanges/x", {"type": 1}, 400),
            ("/exchanges/x", None, 400),
            ("/exchanges/", {}, 403),
            ("/exchanges/amq.mine", {}, 403),
            ("/exchanges/amq.topic", {"type": "topic"}, 204),
        ],
        ids=["type", "no type", "no body", "default", "reserved", "predeclared"],
    )
    def test_bad_exchanges(self, node: Node, path: str, body: Any, status: int) -> None:
        assert node.call("PUT", path, body)[0] == status

    @pytest.mark.parametrize("name", ["", "amq.topic"])
    def test_predeclared_exchanges_stay(self, node: Node, name: str) -> None:
        assert node.call("DELETE", f"/exchanges/{name}")[0] == 403

    def test_bindings(self, site: Site, node: Node) -> None:
        node.call("PUT", "/exchanges/x%201", {"type": "topic"})
        node.call("PUT", "/queues/q%201", {})
        for arguments in ({}, {"a": Int(1)}, {"a": 2, "b": "c"}):
            body = {"source": "x 1", "destination_queue": "q 1", "binding_key": "k;/#", "arguments": arguments}
            assert node.call("POST", "/bindings", body) == (204, None)
            assert node.call("POST", "/bindings", body) == (204, None)
        assert node.call("POST", "/bindings", {"source": "x 1", "destination_queue": "q 1"}) == (204, None)
        query = "/bindings?src=x%201&dstq=q+1&key=k%3B%2F%23"
        status, found = node.call("GET", query)
        assert status == 200
        assert [binding["arguments"] for binding in found] == [{}, {"a": 1}, {"a": 2, "b": "c"}]
        assert type(found[1]["arguments"]["a"]) is Int
        for binding in found:
            assert (binding["source"], binding["destination_queue"], binding["binding_key"]) == ("x 1", "q 1", "k;/#")
        assert found[0]["location"] == "/bindings/src=x%201;dstq=q%201;key=k%3B%2F%23;args="
        assert node.call("DELETE", found[1]["location"]) == (204, None)
        assert [binding["arguments"] for binding in node.call("GET", query)[1]] == [{}, {"a": 2, "b": "c"}]
        assert node.call("DELETE", found[1]["location"]) == (204, None)
        assert node.call("DELETE", found[0]["location"]) == (204, None)
        assert node.call("DELETE", found[2]["location"]) == (204, None)
        assert node.call("GET", query) == (200, [])
        assert len(site.vhost.bindings()) == 1

    def test_too_many_bindings_are_refused(self, site: Site, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = site.vhost.declare_queue("q", None)
        for number in range(5):
            site.vhost.bind(queue, "amq.headers", "k", {"n": number})
        site.vhost.bind(queue, "amq.headers", "k", {})
        _, listed = node.call("GET", "/bindings?src=amq.headers&dstq=q&key=k")
        assert len(listed) == 6
        monkeypatch.setattr(definitions, "MAX_LISTED", 5)
        status, text = node.call("GET", "/bindings?src=amq.headers&dstq=q&key=k")
        assert status == 400 and "at most 5" in text
        monkeypatch.setattr(definitions, "MAX_COMPARED", 5)
        status, text = node.call("DELETE", listed[0]["location"])
        assert status == 400 and "at most 5" in text
        [plain] = [binding["location"] for binding in listed if not binding["arguments"]]
        assert node.call("DELETE", plain)[0] == 204
        assert node.call("DELETE", listed[0]["location"])[0] == 204
        assert len(site.vhost.bindings()) == 4

    def test_looking_through_bindings_is_work(self, site: Site, node: Node) -> None:
        queue = site.vhost.declare_queue("q", None)
        for number in range(500):
            site.vhost.bind(queue, "amq.headers", "k", {"n": number})
        site.run()
        asked = Request()
        asked.query = {"src": "amq.headers", "dstq": "q", "key": "k"}
        before = site.broker.work
        assert len(bindings.show(node.client.session, asked).body) == 500
        assert site.broker.work - before >= 500 * definitions.LIST_WORK

    def test_bindings_between_exchanges(self, site: Site, node: Node) -> None:
        node.call("PUT", "/exchanges/a", {})
        node.call("PUT", "/exchanges/b", {})
        assert node.call("POST", "/bindings", {"source": "a", "destination_exchange": "b", "binding_key": "k"})[0] == 204
        _, [binding] = node.call("GET", "/bindings?src=a&dste=b&key=k")
        assert binding == {
            "source": "a",
            "destination_exchange": "b",
            "binding_key": "k",
            "arguments": {},
            "location": "/bindings/src=a;dste=b;key=k;args=",
        }
        assert node.call("DELETE", binding["location"])[0] == 204
        assert site.vhost.bindings() == []

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({"source": "amq.topic"}, 400),
            ({"destination_queue": "q"}, 400),
            ({"source": "amq.topic", "destination_queue": "q", "destination_exchange": "x"}, 400),
            ({"source": "amq.topic", "destination_queue": 7}, 400),
            ({"source": "none", "destination_queue": "q"}, 404),
            ({"source": "amq.topic", "destination_queue": "none"}, 404),
            ({"source": "", "destination_queue": "q"}, 403),
            ({"source": "amq.topic", "destination_exchange": ""}, 403),
            ({"source": "amq.match", "destination_queue": "q", "arguments": {"x-match": "most"}}, 400),
        ],
        ids=["no destination", "no source", "two", "number", "no exchange", "no queue", "default", "to default", "x-match"],
    )
    def test_bad_bindings(self, node: Node, body: Any, status: int) -> None:
        node.call("PUT", "/queues/q", {})
        assert node.call("POST", "/bindings", body)[0] == status

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/bindings/nonsense", 400),
            ("/bindings/src=a;dstq=b;key=c", 400),
            ("/bindings/src=a;dstq=b;dste=c;key=;args=", 400),
            ("/bindings/src=;dstq=q;key=;args=", 403),
            ("/bindings/src=none;dstq=none;key=;args=", 204),
        ],
        ids=["nonsense", "no args", "two", "default", "absent"],
    )
    def test_bad_paths_of_bindings(self, node: Node, path: str, status: int) -> None:
        assert node.call("DELETE", path)[0] == status

    @pytest.mark.parametrize("query", ["", "?src=a&key=", "?src=a&dstq=b", "?src=a&dstq=b&dste=c&key="])
    def test_bad_queries(self, node: Node, query: str) -> None:
        assert node.call("GET", "/bindings" + query)[0] == 400


class TestPermissions:
    @pytest.mark.parametrize(
        ("method", "path", "body", "operation"),
        [
            ("PUT", "/queues/other", {}, "configure"),
            ("DELETE", "/queues/other", None, "configure"),
            ("DELETE", "/queues/other/messages", None, "read"),
            ("PUT", "/exchanges/other", {}, "configure"),
            ("DELETE", "/exchanges/other", None, "configure"),
            ("PUT", "/queues/mine", {"arguments": {"x-dead-letter-exchange": "other"}}, "write"),
            ("PUT", "/exchanges/mine", {"arguments": {"alternate-exchange": "other"}}, "write"),
            ("POST", "/bindings", {"source": "mine", "destination_queue": "other"}, "write"),
            ("POST", "/bindings", {"source": "other", "destination_exchange": "mine"}, "read"),
            ("DELETE", "/bindings/src=other;dstq=mine;key=;args=", None, "read"),
            ("DELETE", "/bindings/src=mine;dste=other;key=;args=", None, "write"),
        ],
        ids=[
            "queue",
            "delete queue",
            "purge",
            "exchange",
            "delete exchange",
            "dead letters",
            "alternate",
            "bind",
            "bind exchange",
            "unbind",
            "unbind exchange",
        ],
    )
    def test_operations_refused_over_0_9_1_are_refused(
        self, site: Site, method: str, path: str, body: Any, operation: str
    ) -> None:
        site.allow("user", "/", Permission("mine", "mine", "mine"))
        site.vhost.declare_queue("other", None)
        site.vhost.declare_exchange("other", "direct")
        before = dict(site.vhost.queues), dict(site.vhost.exchanges)
        node = Node(connect(site).begin())
        status, text = node.call(method, path, body)
        assert status == 403
        assert text.startswith(f"{operation} access to 'other'")
        assert (dict(site.vhost.queues), dict(site.vhost.exchanges)) == before

    @pytest.mark.parametrize(
        "path",
        ["/queues/other", "/queues/none", "/bindings?src=other&dstq=mine&key=", "/bindings?src=mine&dstq=other&key="],
    )
    def test_users_without_permissions_see_nothing(self, site: Site, path: str) -> None:
        site.allow("user", "/", Permission("^mine", "^mine", "^mine"))
        site.vhost.declare_queue("other", None)
        node = Node(connect(site).begin())
        status, text = node.call("GET", path, None)
        assert status == 403 and text.startswith("access to '")

    @pytest.mark.parametrize("permission", [Permission("other"), Permission("", "other"), Permission("", "", "other")])
    def test_any_permission_shows_a_queue(self, site: Site, permission: Permission) -> None:
        site.allow("user", "/", permission)
        site.vhost.declare_queue("other", None)
        status, shown = Node(connect(site).begin()).call("GET", "/queues/other", None)
        assert status == 200 and shown["name"] == "other"


def test_in_strict_mode_it_is_the_same() -> None:
    node = Node(connect(make_site(strict=True)).begin())
    assert node.call("DELETE", "/queues/none") == (200, {"message_count": 0})
    assert node.call("DELETE", "/exchanges/none") == (204, None)
    assert node.call("DELETE", "/bindings/src=none;dstq=none;key=;args=") == (204, None)
    assert node.call("PUT", "/exchanges/x", {"type": "topic"})[0] == 204
    assert node.call("PUT", "/exchanges/x", {"type": "fanout"})[0] == 409


class TestTokens:
    def test_tokens_are_accepted(self, node: Node) -> None:
        assert node.call("PUT", "/auth/tokens", b"token") == (204, None)
        assert node.call("PUT", "/auth/tokens", "token")[0] == 400


def test_both_links_are_forgotten_with_their_session(site: Site, session: Session) -> None:
    Node(session)
    session.end()
    assert site.protocols.amqp10.links == {}
    assert isinstance(requests(session.client.begin(1)).attached, Attach)


class TestQueuesOfALostConnection:
    """A lost connection's exclusive queues, which are removed in steps, disappear for all clients at once."""

    @pytest.fixture
    def other(self, site: Site) -> Session:
        """A session, and a lost connection that still has the queues `own0`, `own1`, ..."""
        session = connect(site).begin()
        owner = site.channel()
        owner.call("exchange.declare", "exchange.declare-ok", exchange="x", type="direct")
        for number in range(10):
            owner.declare(f"own{number}", exclusive=True)
            owner.call("queue.bind", "queue.bind-ok", queue=f"own{number}", exchange="x", routing_key="k")
        site.vhost.departed.add(owner.client.session)  # as until the last step of the removal
        return session

    def test_they_are_not_found(self, site: Site, other: Session) -> None:
        node = Node(other)
        assert node.call("GET", "/queues/own1")[0] == 404
        assert node.call("DELETE", "/queues/own2") == (200, {"message_count": 0})
        assert node.call("DELETE", "/queues/own3/messages")[0] == 404
        assert node.call("GET", "/bindings?src=x&dstq=own4&key=k") == (200, [])
        assert not {f"own{number}" for number in range(1, 5)} & set(site.vhost.queues)

    def test_they_can_be_declared_again(self, site: Site, other: Session) -> None:
        node = Node(other)
        assert node.call("PUT", "/queues/own1", {"durable": True})[0] == 201
        assert node.call("POST", "/bindings", {"source": "x", "destination_queue": "own2", "binding_key": "k"})[0] == 404
        assert site.vhost.queues["own1"].durable and "own2" not in site.vhost.queues

    @pytest.mark.parametrize("address", ["own1", "/queue/own1", "queue://own1"])
    def test_links_to_their_addresses_get_new_queues(self, site: Site, other: Session, address: str) -> None:
        gone = site.vhost.queues["own1"]
        other.sender(address).send(message(b"m"))
        queue = site.vhost.queues["own1"]
        assert queue is not gone and queue.lifetime.exclusive_owner is None and queue.ready_count == 1


def test_values_of_a_request_are_limited(site: Site) -> None:
    node = Node(connect(site).begin())
    few, many = [None] * (MAX_VALUES - 100), [None] * (MAX_VALUES + 100)
    assert node.call("PUT", "/queues/q", {"durable": True, "arguments": {"x-own": few}})[0] == 201
    status, text = node.call("PUT", "/queues/r", {"durable": True, "arguments": {"x-own": many}})
    assert status == 400 and f"more than {MAX_VALUES} values" in text
    assert list(site.vhost.queues) == ["q"]
