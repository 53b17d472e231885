"""Links that applications open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from leveret.client.amqp10 import Filters, Message, filter_map
from leveret.client.engine.amqp10.link.outgoing import Transfer
from leveret.client.engine.amqp10.link.receiver import ReceiverCore
from leveret.client.engine.amqp10.link.sender import OUTCOMES, SenderCore
from leveret.client.engine.amqp10.messages import encode_message
from leveret.client.engine.amqp10.session.session import SessionCore
from leveret.client.engine.amqp10.transactions import TransactionCore
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import InvalidMessage
from leveret.wire.amqp0.values import Arguments
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.message import encode_data_head
from leveret.wire.amqp10.messaging import Modified, Source, Target
from leveret.wire.amqp10.values import Checked, Symbol
from leveret.wire.amqp10.values import Value as WireValue

_NEVER: Final = constants.TERMINUS_EXPIRY_POLICY_NEVER


def _address(address: Checked, dynamic: bool) -> str | None:
    if dynamic and address is not None:
        raise InvalidMessage(f"address {address!r} of a dynamic terminus; expected None, as the server chooses the address")
    if address is None or isinstance(address, str):
        return address
    raise InvalidMessage(f"expected an address, not {type(address).__name__}")


def _check_name(name: str, durable: bool) -> None:
    if durable and not name:
        raise InvalidMessage("a durable link is found again by its name; expected a name (option name)")


def new_sender(
    session: SessionCore,
    address: str | None,
    name: str,
    settled: bool,
    settle_second: bool,
    durable: bool,
    dynamic: bool,
    properties: Mapping[str, WireValue] | None,
    capabilities: tuple[str, ...],
) -> SenderCore:
    """Return a sender whose attach is sent. `attach_waiter` waits for the server's attach."""
    session._check_open()
    _check_name(name, durable)
    target = Target(_address(address, dynamic), dynamic=dynamic, capabilities=tuple(capabilities))
    if durable:
        target.durable = constants.TERMINUS_DURABILITY_UNSETTLED_STATE
        target.expiry_policy = _NEVER
    sender = SenderCore(
        session,
        name or session.connection.new_name(),
        target,
        settled=settled,
        settle_second=settle_second or durable,
        durable=durable,
        app_owned=True,
        properties=_symbols(properties),
    )
    session.app_senders.append(sender)
    sender.attach()
    return sender


def new_receiver(
    session: SessionCore,
    address: str | None,
    name: str,
    prefetch: int,
    filters: Filters | None,
    browse: bool,
    durable: bool,
    settled: bool,
    settle_second: bool,
    dynamic: bool,
    properties: Mapping[str, WireValue] | None,
    capabilities: tuple[str, ...],
) -> ReceiverCore:
    """Return a receiver that has not started; `SessionCore.consume` attaches it."""
    _check_name(name, durable)
    source = Source(
        _address(address, dynamic),
        dynamic=dynamic,
        filter=filter_map(filters),
        outcomes=OUTCOMES,
        default_outcome=Modified(True),
        capabilities=tuple(capabilities),
    )
    if browse:
        source.distribution_mode = constants.STD_DIST_MODE_COPY
    if durable:
        source.durable = constants.TERMINUS_DURABILITY_CONFIGURATION
        source.expiry_policy = _NEVER
    return ReceiverCore(
        session,
        "",
        source,
        prefetch,
        settled=settled,
        settle_second=settle_second,
        durable=durable,
        properties=_symbols(properties),
        name=name,
    )


def _symbols(properties: Mapping[str, WireValue] | None) -> dict[Symbol, WireValue] | None:
    return {Symbol(name): value for name, value in properties.items()} if properties else None


def encode(sender: SenderCore, body: Checked, fields: Arguments, transaction: TransactionCore | None) -> Transfer:
    """Return an encoded message for this sender.

    Args:
        sender: Sender of the message.
        body: Body of the message, or an `amqp10.Message`.
        fields: Fields of the message, which replace those of an `amqp10.Message`.
        transaction: Transaction of the message, if any.

    Raises:
        InvalidMessage: The message cannot be encoded.
    """
    tracing = sender.session.connection.tracing
    if tracing is not None:
        fields = tracing.add_application_properties(body, fields)
    if isinstance(body, bytes) and not fields:
        head = encode_data_head(len(body))
        transfer = Transfer("", sender.requested_address, "", 0, [head, body], len(head) + len(body), body)
    else:
        if isinstance(body, Message):
            message = replace(body, **fields) if fields else body
        else:
            message = Message(body=body, **fields)
        encoded = encode_message(message)
        transfer = Transfer(
            "",
            sender.requested_address,
            "",
            0,
            [encoded],
            len(encoded),
            message.body if isinstance(message.body, bytes) else b"",
        )
    transfer.send_by(sender)
    transfer.transaction = transaction
    return transfer


def detach(sender: SenderCore, closed: bool) -> Waiter:
    """Close the sender, or only detach it; return a waiter for the server's detach."""
    sender.detach(closed)
    return sender.detach_waiter()
