"""The definition of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.arguments import QueueSettings

if TYPE_CHECKING:
    from leveret.broker.values import FieldTable
    from leveret.broker.vhost import Vhost


class QueueDefinition:
    """The definition of a queue, which the queue does not keep.

    vhost            the vhost
    id               the identity in the log, 0 for a queue that the log does not know
    name             the name
    durable          whether a restart keeps the queue
    exclusive_owner  the connection that has the queue to itself, None for all
    auto_delete      whether it is deleted with its last consumer
    arguments        the arguments as declared
    settings         the settings in the arguments
    """

    __slots__ = ("arguments", "auto_delete", "durable", "exclusive_owner", "id", "name", "settings", "vhost")

    def __init__(
        self,
        vhost: Vhost,
        id: int,
        name: str,
        durable: bool = False,
        exclusive_owner: object | None = None,
        auto_delete: bool = False,
        arguments: FieldTable | None = None,
        settings: QueueSettings | None = None,
    ) -> None:
        self.vhost = vhost
        self.id = id
        self.name = name
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        self.arguments: FieldTable = {} if arguments is None else arguments
        self.settings = QueueSettings({}, {}) if settings is None else settings
