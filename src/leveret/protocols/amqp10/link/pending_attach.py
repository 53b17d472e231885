"""Attaches that wait for the unsettled deliveries of their termini, which are prepared in steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.protocols.amqp10.link.resume_actions import RemoteUnsettledMap
from leveret.protocols.amqp10.link.unsettled_map import LocalUnsettledMap

if TYPE_CHECKING:
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.terminus.terminus import Terminus
    from leveret.wire.amqp10.transport import Attach


class PendingAttach:
    """An attach of a known terminus. The connection processes its frame in every turn until the terminus is ready.

    The latest attach of a link wins (transport section 2.6.1): an earlier one that still waits is refused.

    Attributes:
        continues: whether the session still has the link's deliveries, which then continue (transport 2.6.4).
        remote: the unsettled map of the client.
        local: that of the broker; None if the attach needs none.
        tags: the tags of the deliveries that continue, by delivery-id.
    """

    def __init__(self, session: SessionEndpoint, frame: Attach, terminus: Terminus) -> None:
        self.session = session
        self.frame = frame
        self.terminus = terminus
        self.continues = False
        self.remote = RemoteUnsettledMap(frame.unsettled, frame.incomplete_unsettled)
        self.local: LocalUnsettledMap | None = None
        self.tags: dict[int, bytes] = {}
        self._claim = terminus.claim()
        self._version = -1
        self._ready = False
        self._failed = False

    def is_superseded(self, known: Terminus | None) -> bool:
        """Return whether the link, whose terminus is `known`, was attached by a later attach."""
        if known is self.terminus:
            return known.claims != self._claim
        return known is not None and known.link is not None

    def is_ready(self) -> bool:
        """Return whether the terminus is ready to be attached. If not, prepare it in steps.

        Raises:
            RuntimeError: the preparation has failed.
        """
        if self._failed:
            raise RuntimeError(f"the unsettled deliveries of link '{self.frame.name}' cannot be prepared")
        terminus = self.terminus
        if self._version != terminus.released:
            # It has just begun, or an operator has released the deliveries meanwhile.
            self._version = terminus.released
            self._ready = False
            terminus.registry.broker.jobs.run_steps(self._preparing(), None, self._fail)
        return self._ready

    def encode(self, tags: list[bytes]) -> LocalUnsettledMap:
        """Begin the broker's map."""
        self.local = LocalUnsettledMap(tags, self.session.connection.output.max_frame_size)
        return self.local

    def _preparing(self) -> Iterator[int]:
        terminus = self.terminus
        version = self._version
        self.continues = self.frame.unsettled is None and terminus.session is self.session
        self.local = None
        self.tags = {}
        for work in terminus.preparing(self):
            yield work
            if (
                terminus.claims != self._claim
                or terminus.released != version
                or terminus.removed
                or self.session.closing
                or self.session.ended
            ):
                return
        self._ready = True

    def _fail(self) -> None:
        self._failed = True
