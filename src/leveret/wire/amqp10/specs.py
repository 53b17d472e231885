"""The types of all four AMQP 1.0 tables."""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp10 import table_messaging, table_security, table_transactions, table_transport
from leveret.wire.amqp10.model import CompositeSpec, RestrictedSpec, Types
from leveret.wire.amqp10.notation import parse

TYPES: Final[Types] = parse([table_transport.TEXT, table_messaging.TEXT, table_transactions.TEXT, table_security.TEXT])
# By numeric descriptor: the composite types, and the restricted types that are sections of a message.
COMPOSITES: Final[dict[int, CompositeSpec]] = {spec.descriptor: spec for spec in TYPES.composites.values()}
SECTIONS: Final[dict[int, RestrictedSpec]] = {
    spec.descriptor: spec for spec in TYPES.restricted.values() if spec.descriptor
}
