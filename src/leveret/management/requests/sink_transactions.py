"""stage.*: sink transactions. Writers open, publish to and prepare them (`seal`); a driver commits them (`promote`)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from leveret.broker.batch_commit import DEAD_LETTER, DROP, FAIL
from leveret.broker.errors import BrokerError, PreconditionFailed
from leveret.management.requests.operation import Arguments, Asked, Fields, Later, Operation
from leveret.management.sink_transactions import describe_app, describe_transaction

RULES: Final = {"fail": FAIL, "drop": DROP, "dead-letter": DEAD_LETTER}
# The default of `sink_transactions.max_per_vhost`.
MAX_TRANSACTIONS: Final = 10_000

Uuid = Annotated[str, Meta(min_length=1, max_length=64)]
AppName = Annotated[str, Meta(min_length=1, max_length=255)]


class Open(Arguments, kw_only=True):
    """`exchanges` are target exchanges to check in advance."""

    stage: Uuid
    app: AppName
    exchanges: list[str] = field(default_factory=list)


class Prepare(Arguments, kw_only=True):
    stage: Uuid
    count: Annotated[int, Meta(ge=0)]
    crc32: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


class Commit(Arguments, kw_only=True):
    app: AppName
    batch: Annotated[int, Meta(ge=0, le=(1 << 62))]
    stages: Annotated[list[Uuid], Meta(max_length=MAX_TRANSACTIONS)]
    on_unroutable: Literal["fail", "drop", "dead-letter"] = "fail"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: Annotated[str, Meta(max_length=255)] | None = None


class App(Arguments, kw_only=True):
    app: AppName


class Abort(Arguments, kw_only=True):
    stages: Annotated[list[Uuid], Meta(max_length=MAX_TRANSACTIONS)]


class List(Arguments, kw_only=True):
    app: AppName | None = None


def open_transaction(asked: Asked, arguments: Open) -> Fields:
    """Open a sink transaction. Permissions are checked again on each publish."""
    transactions = asked.vhost.sink_transactions
    for name in arguments.exchanges:
        transactions.check_exchange(name)
        asked.vhost.exchange(name)
        asked.check("write", name)
    transactions.open(arguments.stage, arguments.app, asked.user)
    return {}


def prepare(asked: Asked, arguments: Prepare) -> Later:
    """Prepare a sink transaction. Verifies the number of messages, and the CRC-32 of their bodies in publish order."""
    later = Later()

    def done() -> None:
        later.answer({})

    asked.vhost.sink_transactions.prepare(arguments.stage, asked.user, arguments.count, arguments.crc32, done, later.fail)
    return later


def commit(asked: Asked, arguments: Commit) -> Later:
    """Commit a batch: publish the messages of its sink transactions in order, exactly once."""
    later = Later()
    rule = RULES[arguments.on_unroutable]
    exchange = arguments.dead_letter_exchange
    if rule == DEAD_LETTER:
        if exchange is None:
            raise PreconditionFailed("on_unroutable 'dead-letter' needs dead_letter_exchange")
        asked.vhost.sink_transactions.check_exchange(exchange)
        asked.check("write", exchange)
    elif exchange is not None or arguments.dead_letter_routing_key is not None:
        raise PreconditionFailed("dead_letter_exchange and dead_letter_routing_key are for on_unroutable 'dead-letter'")

    def done(committed: int, unroutable: int, already: bool) -> None:
        later.answer({"promoted": committed, "already": already, "unroutable": unroutable})

    def failed(error: BrokerError) -> None:
        later.fail(error)

    asked.vhost.sink_transactions.commit(arguments.app, asked.user, arguments.batch, arguments.stages, rule, exchange,
                               arguments.dead_letter_routing_key, done, failed)
    return later


def last(asked: Asked, arguments: App) -> Fields:
    """Return the last batch whose commit was decided, or null."""
    return {"batch": asked.vhost.sink_transactions.last(arguments.app, asked.user)}


def abort(asked: Asked, arguments: Abort) -> Fields:
    """Abort sink transactions; unknown ones are ignored."""
    transactions = asked.vhost.sink_transactions
    known = [transactions.find_own(uuid, asked.user) for uuid in dict.fromkeys(arguments.stages)
             if uuid in transactions.by_uuid]
    for transaction in known:
        if transaction.batch_commit is not None:
            raise PreconditionFailed(f"sink transaction '{transaction.uuid}' is being committed")
    return {"discarded": sum(transactions.abort(transaction.uuid) for transaction in known)}


def list_transactions(asked: Asked, arguments: List) -> Fields:
    """List the user's sink transactions and sinks, of one app or of all."""
    transactions = asked.vhost.sink_transactions
    mine = [transaction for transaction in transactions.by_uuid.values()
            if transaction.user == asked.user and arguments.app in (None, transaction.app)]
    apps = [app for app in transactions.apps.values() if app.user == asked.user and arguments.app in (None, app.name)]
    return {"stages": [describe_transaction(transaction) for transaction in mine],
            "apps": [describe_app(app) for app in apps]}


OPERATIONS = {
    "stage.open": Operation(open_transaction, Open),
    "stage.seal": Operation(prepare, Prepare),
    "stage.promote": Operation(commit, Commit),
    "stage.last": Operation(last, App),
    "stage.discard": Operation(abort, Abort),
    "stage.list": Operation(list_transactions, List),
}
