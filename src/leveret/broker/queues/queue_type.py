"""A queue type, as the registry lists it: its class and its argument schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.broker.arguments import Argument
    from leveret.broker.queues.queue import Queue
    from leveret.broker.values import FieldTable


class QueueType:
    """A queue type.

    name      the value of `x-queue-type`
    make      the class
    own       arguments that only this type has
    defaults  values of arguments that a declaration leaves out
    refused   shared arguments that it rejects; `because` is the reason, which follows the name of the type in the error
    durable   its queues are durable, and neither exclusive nor auto-delete
    apply_to  the value of `apply-to` of policies for this type only, "" for none
    needs     an argument of `own` that its queues must have, and that selects it without `x-queue-type`; "" for none
    serves_unindexed  its queues accept messages before their recovered entries are indexed
    """

    __slots__ = (
        "apply_to",
        "because",
        "defaults",
        "durable",
        "make",
        "name",
        "needs",
        "own",
        "refused",
        "serves_unindexed",
    )

    def __init__(
        self,
        name: str,
        make: type[Queue],
        own: tuple[Argument, ...] = (),
        *,
        defaults: FieldTable | None = None,
        durable: bool = False,
        refused: tuple[str, ...] = (),
        because: str = "",
        apply_to: str = "",
        needs: str = "",
        serves_unindexed: bool = False,
    ) -> None:
        self.name = name
        self.make = make
        self.own = own
        self.defaults = defaults or {}
        self.durable = durable
        self.refused = refused
        self.because = because
        self.apply_to = apply_to
        self.needs = needs
        self.serves_unindexed = serves_unindexed
