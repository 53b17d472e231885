"""Operations that declare, bind and delete through the management node, and record the topology for recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp10.addresses import quoted
from leveret.client.engine.amqp10.management.requests import PENDING, OnAnswer
from leveret.client.engine.common.channel import Operations
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.results import Result
from leveret.client.engine.common.topology import DeclaredQueue
from leveret.wire.amqp0.values import Arguments, FieldMapping
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.session.session import SessionCore

BINDINGS: Final = "/bindings"


def queue_path(name: str) -> str:
    """Return the path of a queue."""
    return f"/queues/{quoted(name)}"


def exchange_path(name: str) -> str:
    """Return the path of an exchange."""
    return f"/exchanges/{quoted(name)}"


def queue_body(sent: Arguments) -> Arguments:
    """Return the body of a request to declare a queue. `sent` is as for `queue.declare`."""
    return {
        "durable": sent["durable"],
        "exclusive": sent["exclusive"],
        "auto_delete": sent["auto_delete"],
        "arguments": sent["arguments"],
    }


def exchange_body(sent: Arguments) -> Arguments:
    """Return the body of a request to declare an exchange. `sent` is as for `exchange.declare`."""
    return {
        "type": sent["type"],
        "durable": sent["durable"],
        "auto_delete": sent["auto_delete"],
        "internal": sent["internal"],
        "arguments": sent["arguments"],
    }


def binding_body(to_queue: bool, sent: Arguments) -> Arguments:
    """Return the body of a request to bind. `sent` is as for `queue.bind` or `exchange.bind`."""
    destination = {"destination_queue": sent["queue"]} if to_queue else {"destination_exchange": sent["destination"]}
    source = sent["exchange"] if to_queue else sent["source"]
    return {"source": source, **destination, "binding_key": sent["routing_key"], "arguments": sent["arguments"]}


class Amqp10Operations(Operations):
    """The operations of one session."""

    __slots__ = ("_session",)

    def __init__(self, session: SessionCore) -> None:
        self._session = session

    def _request(self, method: str, path: str, body: Checked, answered: OnAnswer, name: str) -> Waiter:
        self._session._check_open()
        return self._session.connection.management.request(method, path, body, answered, name)

    def declare_queue(
        self, name: str, durable: bool, exclusive: bool, auto_delete: bool, passive: bool, arguments: FieldMapping | None
    ) -> Waiter:
        """Declare a queue; the result is the `DeclaredQueue`, its message count and its consumer count.

        The client chooses the name of a queue without one.
        """
        connection = self._session.connection
        requested = name or connection.new_name()
        sent: Arguments = {
            "queue": requested,
            "durable": durable,
            "exclusive": exclusive,
            "auto_delete": auto_delete,
            "passive": passive,
            "arguments": dict(arguments or {}),
        }

        def declared(status: int, body: Checked, abandoned: bool) -> tuple[DeclaredQueue, int, int]:
            reply = body if isinstance(body, dict) else {}
            given = str(reply.get("name", requested))
            if passive:
                queue = connection.topology.queues.get(given) or DeclaredQueue(given, False, sent)
            else:
                queue = connection.topology.add_queue(given, False, sent)
            return queue, int(reply.get("message_count") or 0), int(reply.get("consumer_count") or 0)

        path = queue_path(requested)
        if passive:
            return self._request("GET", path, None, declared, "queue.declare")
        return self._request("PUT", path, queue_body(sent), declared, "queue.declare")

    def delete_queue(self, name: str) -> Waiter:
        """Delete a queue; the result is the number of messages that it contained."""
        topology = self._session.connection.topology

        def deleted(status: int, body: Checked, abandoned: bool) -> int:
            topology.remove_queue(name)
            return _count(body)

        return self._request("DELETE", queue_path(name), None, deleted, "queue.delete")

    def purge_queue(self, name: str) -> Waiter:
        """Purge a queue; the result is the number of messages removed."""
        return self._request(
            "DELETE", queue_path(name) + "/messages", None, lambda status, body, abandoned: _count(body), "queue.purge"
        )

    def declare_exchange(
        self, name: str, type: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldMapping | None
    ) -> Waiter:
        """Declare an exchange."""
        sent: Arguments = {
            "exchange": name,
            "type": type,
            "durable": durable,
            "auto_delete": auto_delete,
            "internal": internal,
            "passive": False,
            "arguments": dict(arguments or {}),
        }
        topology = self._session.connection.topology

        def declared(status: int, body: Checked, abandoned: bool) -> None:
            topology.add_exchange(sent)

        return self._request("PUT", exchange_path(name), exchange_body(sent), declared, "exchange.declare")

    def delete_exchange(self, name: str) -> Waiter:
        """Delete an exchange."""
        topology = self._session.connection.topology

        def deleted(status: int, body: Checked, abandoned: bool) -> None:
            topology.remove_exchange(name)

        return self._request("DELETE", exchange_path(name), None, deleted, "exchange.delete")

    def bind(
        self, to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None
    ) -> Waiter:
        """Bind a queue or an exchange."""
        sent = _binding(to_queue, destination, source, routing_key, arguments)
        topology = self._session.connection.topology

        def bound(status: int, body: Checked, abandoned: bool) -> None:
            topology.bind(to_queue, sent)

        return self._request(
            "POST", BINDINGS, binding_body(to_queue, sent), bound, "queue.bind" if to_queue else "exchange.bind"
        )

    def unbind(
        self, to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None
    ) -> Waiter:
        """Remove a binding."""
        sent = _binding(to_queue, destination, source, routing_key, arguments)
        topology = self._session.connection.topology
        name = "queue.unbind" if to_queue else "exchange.unbind"
        kind = "dstq" if to_queue else "dste"
        if not arguments:
            path = f"{BINDINGS}/src={quoted(source)};{kind}={quoted(destination)};key={quoted(routing_key)};args="

            def unbound(status: int, body: Checked, abandoned: bool) -> None:
                topology.unbind(to_queue, sent)

            return self._request("DELETE", path, None, unbound, name)
        # The server names bindings with arguments, so find the name first.
        management = self._session.connection.management
        waiter: Waiter = self._session.connection.frontend.new_waiter()

        def binding_deleted(status: int, body: Checked, abandoned: bool) -> None:
            topology.unbind(to_queue, sent)

        def found(status: int, body: Checked, abandoned: bool) -> Result:
            for binding in body or []:
                if binding.get("arguments") == sent["arguments"]:
                    management.request("DELETE", binding["location"], None, binding_deleted, name, waiter)
                    return PENDING
            return binding_deleted(status, None, abandoned)

        path = f"{BINDINGS}?src={quoted(source)}&{kind}={quoted(destination)}&key={quoted(routing_key)}"
        self._session._check_open()
        return management.request("GET", path, None, found, name, waiter)


def _binding(to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None) -> Arguments:
    names = ("queue", "exchange") if to_queue else ("destination", "source")
    return {names[0]: destination, names[1]: source, "routing_key": routing_key, "arguments": dict(arguments or {})}


def _count(body: Checked) -> int:
    return int(body.get("message_count") or 0) if isinstance(body, dict) else 0
