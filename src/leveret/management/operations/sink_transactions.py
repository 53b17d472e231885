"""Sink transactions (`stages` in requests) and their sinks (`apps`).

Writers open sink transactions, publish to them and prepare them (`seal`); a driver commits them (`promote`). Operators
list and abort them, and forget sinks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from leveret.broker.errors import BrokerError, NotFound, PreconditionFailed
from leveret.broker.transactions.batch_commit import DEAD_LETTER, DROP, FAIL
from leveret.management.operations.operation import (
    EACH,
    OWN,
    Context,
    Later,
    Operation,
    Operations,
    VhostContext,
    VhostOperation,
    VhostOperations,
)
from leveret.management.structs import InVhost, NamedInVhost, Reply, Request

if TYPE_CHECKING:
    from leveret.broker.queues.sink_transaction import SinkTransaction
    from leveret.broker.transactions.sink_transactions import App

RULES: Final = {"fail": FAIL, "drop": DROP, "dead-letter": DEAD_LETTER}
# The default of `sink_transactions.max_per_vhost`.
MAX_TRANSACTIONS: Final = 10_000

Uuid = Annotated[str, Meta(min_length=1, max_length=64)]
AppName = Annotated[str, Meta(min_length=1, max_length=255)]


class AbortAny(Request, kw_only=True):
    stages: list[str]
    vhost: str = "/"


class Open(Request, kw_only=True):
    """Request to open a sink transaction. `exchanges` are target exchanges to check in advance."""

    stage: Uuid
    app: AppName
    exchanges: list[str] = field(default_factory=list)


class Prepare(Request, kw_only=True):
    stage: Uuid
    count: Annotated[int, Meta(ge=0)]
    crc32: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


class Commit(Request, kw_only=True):
    app: AppName
    batch: Annotated[int, Meta(ge=0, le=(1 << 62))]
    stages: Annotated[list[Uuid], Meta(max_length=MAX_TRANSACTIONS)]
    on_unroutable: Literal["fail", "drop", "dead-letter"] = "fail"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: Annotated[str, Meta(max_length=255)] | None = None


class OfApp(Request, kw_only=True):
    app: AppName


class Abort(Request, kw_only=True):
    stages: Annotated[list[Uuid], Meta(max_length=MAX_TRANSACTIONS)]


class List(Request, kw_only=True):
    app: AppName | None = None


class SinkTransactionInfo(Reply, kw_only=True):
    """A sink transaction. `idle` is the approximate number of seconds since its last publish or prepare."""

    vhost: str
    stage: str
    app: str
    user: str
    state: Literal["open", "sealed", "promoted"]
    messages: int
    octets: int
    memory: int
    idle: int


class SinkInfo(Reply, kw_only=True):
    """A sink. `moved` counts committed messages of the current batch; `waits_for` is the reason for a delay."""

    vhost: str | UnsetType = UNSET
    app: str
    user: str
    batch: int | None
    promoting: int | None
    moved: int | None
    waits_for: str | None


class SinkTransactions(Reply, kw_only=True):
    stages: list[SinkTransactionInfo]
    apps: list[SinkInfo]


class Aborted(Reply, kw_only=True):
    """The number of aborted transactions."""

    discarded: int


class Committed(Reply, kw_only=True):
    """A committed batch with its numbers of messages and of unroutable messages; `already` if committed before."""

    promoted: int
    already: bool
    unroutable: int


class LastBatch(Reply, kw_only=True):
    """The last batch whose commit was decided."""

    batch: int | None


def describe_transaction(transaction: SinkTransaction) -> SinkTransactionInfo:
    """Describe a sink transaction."""
    now = transaction.broker.timers.now()
    return SinkTransactionInfo(
        vhost=transaction.vhost.name,
        stage=transaction.uuid,
        app=transaction.app,
        user=transaction.user,
        state="promoted" if transaction.batch_commit is not None else "sealed" if transaction.prepared else "open",
        messages=transaction.count,
        octets=transaction.bytes,
        memory=transaction.cached_bytes,
        idle=0 if transaction.count != transaction.last_count else max(now - transaction.idle_since, 0) // 1000,
    )


def describe_app(app: App) -> SinkInfo:
    """Describe a sink."""
    commit = app.batch_commit
    return SinkInfo(
        app=app.name,
        user=app.user,
        batch=app.batch if app.batch >= 0 else None,
        promoting=commit.batch if commit is not None else None,
        moved=commit.n_moved if commit is not None else None,
        waits_for=commit.waits_for or None if commit is not None else None,
    )


def list_transactions(context: Context, request: InVhost) -> Iterator[SinkTransactionInfo]:
    """List sink transactions."""
    found = [each for vhost in context.vhosts(request.vhost) for each in vhost.sink_transactions.by_uuid.values()]
    return (describe_transaction(each) for each in found)


def list_apps(context: Context, request: InVhost) -> Iterator[SinkInfo]:
    """List sinks."""
    found = [(vhost.name, app) for vhost in context.vhosts(request.vhost) for app in vhost.sink_transactions.apps.values()]
    for vhost_name, app in found:
        item = describe_app(app)
        item.vhost = vhost_name
        yield item


def abort_any(context: Context, request: AbortAny) -> Aborted:
    """Abort sink transactions of any user."""
    transactions = context.vhost(request.vhost).sink_transactions
    for uuid in request.stages:
        if uuid not in transactions.by_uuid:
            raise NotFound(f"sink transaction '{uuid}' does not exist in vhost '{request.vhost}'")
    return Aborted(discarded=sum(transactions.abort(uuid) for uuid in request.stages))


def forget(context: Context, request: NamedInVhost) -> None:
    """Forget the last batch of a sink. If the sink commits it again, the broker publishes it again."""
    context.vhost(request.vhost).sink_transactions.forget_app(request.name)


def open_transaction(context: VhostContext, request: Open) -> Reply:
    """Open a sink transaction. Each publish checks permissions again."""
    transactions = context.vhost.sink_transactions
    for name in request.exchanges:
        transactions.check_exchange(name)
        context.vhost.exchange(name)
        context.check("write", name)
    transactions.open(request.stage, request.app, context.user)
    return Reply()


def prepare(context: VhostContext, request: Prepare) -> Later[Reply]:
    """Prepare a sink transaction. Verifies the number of messages and the CRC-32 of their bodies in publish order."""
    later = Later[Reply]()

    def done() -> None:
        later.answer(Reply())

    context.vhost.sink_transactions.prepare(request.stage, context.user, request.count, request.crc32, done, later.fail)
    return later


def commit(context: VhostContext, request: Commit) -> Later[Committed]:
    """Commit a batch: publish the messages of its sink transactions in order, exactly once."""
    later = Later[Committed]()
    rule = RULES[request.on_unroutable]
    exchange = request.dead_letter_exchange
    if rule == DEAD_LETTER:
        if exchange is None:
            raise PreconditionFailed("on_unroutable 'dead-letter' requires dead_letter_exchange")
        context.vhost.sink_transactions.check_exchange(exchange)
        context.check("write", exchange)
    elif exchange is not None or request.dead_letter_routing_key is not None:
        raise PreconditionFailed("dead_letter_exchange and dead_letter_routing_key require on_unroutable 'dead-letter'")

    def done(committed: int, unroutable: int, already: bool) -> None:
        later.answer(Committed(promoted=committed, already=already, unroutable=unroutable))

    def failed(error: BrokerError) -> None:
        later.fail(error)

    context.vhost.sink_transactions.commit(
        request.app,
        context.user,
        request.batch,
        request.stages,
        rule,
        exchange,
        request.dead_letter_routing_key,
        done,
        failed,
    )
    return later


def last(context: VhostContext, request: OfApp) -> LastBatch:
    """Return the last batch whose commit was decided, or null."""
    return LastBatch(batch=context.vhost.sink_transactions.last(request.app, context.user))


def abort(context: VhostContext, request: Abort) -> Aborted:
    """Abort sink transactions. Ignores unknown ones."""
    transactions = context.vhost.sink_transactions
    known = [
        transactions.find_own(uuid, context.user) for uuid in dict.fromkeys(request.stages) if uuid in transactions.by_uuid
    ]
    for transaction in known:
        if transaction.batch_commit is not None:
            raise PreconditionFailed(f"sink transaction '{transaction.uuid}' is being committed")
    return Aborted(discarded=sum(transactions.abort(transaction.uuid) for transaction in known))


def list_own(context: VhostContext, request: List) -> SinkTransactions:
    """List the user's sink transactions and sinks, of one app or of all apps."""
    transactions = context.vhost.sink_transactions
    mine = [
        transaction
        for transaction in transactions.by_uuid.values()
        if transaction.user == context.user and request.app in (None, transaction.app)
    ]
    apps = [app for app in transactions.apps.values() if app.user == context.user and request.app in (None, app.name)]
    return SinkTransactions(
        stages=[describe_transaction(transaction) for transaction in mine], apps=[describe_app(app) for app in apps]
    )


OPERATIONS: Operations = {
    "stages.list": Operation(list_transactions, InVhost, SinkTransactionInfo),
    "stages.apps": Operation(list_apps, InVhost, SinkInfo),
    "stages.discard": Operation(abort_any, AbortAny, Aborted, changes=True),
    "stages.forget": Operation(forget, NamedInVhost, changes=True),
}
VHOST_OPERATIONS: VhostOperations = {
    "stage.open": VhostOperation(open_transaction, Open, Reply, EACH),
    "stage.seal": VhostOperation(prepare, Prepare, Reply, OWN),
    "stage.promote": VhostOperation(commit, Commit, Committed, EACH),
    "stage.last": VhostOperation(last, OfApp, LastBatch, OWN),
    "stage.discard": VhostOperation(abort, Abort, Aborted, OWN),
    "stage.list": VhostOperation(list_own, List, SinkTransactions, OWN),
}
