"""The table of operations: requests, replies, rights, and who may execute what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from leveret.broker.errors import AccessRefused
from leveret.management.admin import BadCall
from leveret.management.operations.definitions import (
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_SHOW,
    DeclareQueue,
    DeleteQueue,
    OneQueue,
)
from leveret.management.operations.operation import Operator, User, VhostContext, perform_now, read
from leveret.management.operations.queues import Describe
from leveret.management.operations.table import DEFINITIONS, OPERATIONS, VHOST_OPERATIONS
from leveret.management.structs import Reply, Request
from leveret.security.accounts import UserAccount
from leveret.security.permissions import Permission
from leveret.security.users import DeclaredUser
from leveret.security.users import User as Account
from tests.management.harness import Harness

TABLES: list[tuple[str, Any]] = [*OPERATIONS.items(), *VHOST_OPERATIONS.items(), *DEFINITIONS.items()]


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    harness.users.declare(
        {
            "alice": DeclaredUser(
                user=Account(name="alice", permissions={"/": Permission("mine", "mine", "mine")}), password=b"x"
            )
        }
    )
    yield harness
    harness.close()


@pytest.mark.parametrize(("name", "operation"), TABLES, ids=[name for name, _ in TABLES])
def test_requests_and_replies_are_structs(name: str, operation: Any) -> None:
    assert issubclass(operation.request, Request)
    assert operation.reply is None or issubclass(operation.reply, Reply)
    fields = {field.name for field in msgspec.structs.fields(operation.request)}
    assert not operation.right.field or operation.right.field in fields


def test_a_name_has_one_meaning() -> None:
    assert not OPERATIONS.keys() & (VHOST_OPERATIONS.keys() | DEFINITIONS.keys())
    assert not VHOST_OPERATIONS.keys() & DEFINITIONS.keys()


@pytest.mark.parametrize("name", ["users.list", "queues.add", "status"])
def test_users_may_not_do_what_operators_may(harness: Harness, name: str) -> None:
    alice = User(UserAccount("alice", harness.users))
    call = harness.admin.call(name, {"name": "q"} if name == "queues.add" else {}, alice)
    with pytest.raises(AccessRefused, match=rf"operation '{name}' refused for user 'alice': expected an operator"):
        asyncio.run(call)
    assert "q" not in harness.broker.vhosts["/"].queues


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"queue": "q", "more": 1}, r"queue\.describe: .*unknown field `more`; expected queue"),
        ({"queue": 5}, r"queue\.describe: Expected `str`, got `int` - at `\$\.queue`"),
        ({}, r"queue\.describe: .*the field 'queue' is missing"),
    ],
)
def test_a_wrong_request_is_refused_with_the_field(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read("queue.describe", Describe, fields)


def test_requests_without_fields_say_so(harness: Harness) -> None:
    with pytest.raises(BadCall, match=r"status: .*unknown field `vhost`; expected no fields"):
        harness.call("status", vhost="/")


def test_the_same_operation_for_an_operator_and_for_users(harness: Harness) -> None:
    vhost = harness.broker.vhosts["/"]
    operator = VhostContext(vhost, Operator(), None)
    alice = VhostContext(vhost, User(UserAccount("alice", harness.users)), object())
    assert perform_now(QUEUE_DECLARE, operator, DeclareQueue(name="other")).name == "other"
    refused: list[tuple[Any, Request]] = [
        (QUEUE_DECLARE, DeclareQueue(name="other")),
        (QUEUE_DELETE, DeleteQueue(name="other")),
    ]
    for operation, request in refused:
        with pytest.raises(AccessRefused, match="configure access to 'other' in vhost '/' refused for user 'alice'"):
            perform_now(operation, alice, request)
    with pytest.raises(AccessRefused, match="access to 'other' in vhost '/' refused for user 'alice'"):
        perform_now(QUEUE_SHOW, alice, OneQueue(name="other"))
    own = perform_now(QUEUE_DECLARE, alice, DeclareQueue(name="mine", exclusive=True))
    assert (own.exclusive, own.durable, own.messages, own.stored) == (True, True, 0, False)
    assert vhost.queues["mine"].lifetime.exclusive_owner is alice.session
    assert perform_now(QUEUE_DELETE, alice, DeleteQueue(name="mine")).messages == 0
