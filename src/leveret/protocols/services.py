"""State shared by all sessions of a server: the broker, users, limits and connections."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from leveret.broker.broker import Broker
from leveret.broker.errors import BrokerError, NotAllowed, ResourceError
from leveret.management.operations.operation import NO_AUDITOR
from leveret.protocols.login_queue import LoginQueue
from leveret.protocols.shared_state import SharedState
from leveret.security.accounts import Account, TokenLogins
from leveret.security.users import UserStore
from leveret.wire.amqp0.values import ContentProperties

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.protocols.session import Session

logger = logging.getLogger("leveret.connection")


# Units of work to notify a session of an alarm, plus one for each of its channels.
ALARM_WORK = 5
# Sessions whose channels are counted per unit of work, as a power of two.
SUM_SHIFT = 3
# Maximum number of clients named in the description of a turn.
MAX_DESCRIBED = 5


class SessionSettings:
    """Limits and proposed values of the protocols, in bytes and seconds; 0 means no limit.

    Attributes:
        spool_threshold: size above which bodies go to the spool.
        max_transaction: maximum bytes of publishes in an uncommitted transaction.
        qos_spec: whether `global` of `basic.qos` has the specification's meaning instead of RabbitMQ's.
        strict: whether behaviour that no vhost controls follows the specifications, even if today's clients
            expect otherwise (`server.compat.strict`).
    """

    def __init__(
        self,
        *,
        frame_max: int = 131072,
        channel_max: int = 2047,
        heartbeat: int = 60,
        max_message_size: int = 134217728,
        spool_threshold: int = 1 << 20,
        max_transaction: int = 256 << 20,
        qos_spec: bool = False,
        connections: int = 0,
        connections_per_user: int = 0,
        consumers_per_channel: int = 0,
        unacked_per_channel: int = 0,
        strict: bool = False,
    ) -> None:
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.heartbeat = heartbeat
        self.max_message_size = max_message_size
        self.spool_threshold = spool_threshold
        self.max_transaction = max_transaction
        self.qos_spec = qos_spec
        self.connections = connections
        self.connections_per_user = connections_per_user
        self.consumers_per_channel = consumers_per_channel
        self.unacked_per_channel = unacked_per_channel
        self.strict = strict


class VhostSessionSettings:
    """Protocol settings of a vhost.

    Attributes:
        qos_spec: as in `SessionSettings`; None means the server's setting.
        consumer_timeout: in milliseconds; 0 means no timeout.
    """

    def __init__(self, qos_spec: bool | None = None, consumer_timeout: int = 0) -> None:
        self.qos_spec = qos_spec
        self.consumer_timeout = consumer_timeout


class Services:
    """The services of one server.

    Connections have the numbers `first_number`, `first_number` + `number_step`, and so on.

    Attributes:
        mechanisms: SASL mechanisms in the order in which they are offered.
        sessions: connected sessions, authenticated or not.
        numbered: sessions by number.
        by_user: number of open connections by user.
        elsewhere: number of open connections in other shards, while a connection that was handed over opens.
        elsewhere_of_user: the same for its user.
        channels_elsewhere: number of channels in other shards by user, of users with a limit on it; about a second old.
        tokens: logins by token; None if the broker accepts none.
        auditor: records changes that clients request over AMQP management.
        alarm: reason why publishers are blocked; "" without an alarm.
        alarms: number of changes of `alarm` so far.
        states: state of each protocol.
        call_soon: runs a callback after all ready sockets have been read; set by the server.
        served: numbers of the sessions whose input this turn has processed.
        served_before: the same for the previous turn, whose work may continue in this one.
    """

    def __init__(
        self,
        broker: Broker,
        users: UserStore,
        settings: SessionSettings,
        *,
        mechanisms: list[str] | None = None,
        anonymous_user: str | None = None,
        external_name: str = "common-name",
        server_properties: ContentProperties | None = None,
        first_number: int = 1,
        number_step: int = 1,
    ) -> None:
        self.broker = broker
        self.users = users
        users.watchers.append(self._users_changed)
        broker.on_vhost_removed = self.vhost_removed
        self.settings = settings
        self.states: list[SharedState] = []
        self.vhost_settings: dict[str, VhostSessionSettings] = {}
        self.mechanisms = mechanisms or ["PLAIN", "AMQPLAIN"]
        self.anonymous_user = anonymous_user
        self.external_name = external_name
        self.server_properties = server_properties or {}
        self.sessions: dict[Session, None] = {}
        self.numbered: dict[int, Session] = {}
        self.by_user: dict[str, int] = {}
        self.logins = LoginQueue()
        self.tokens: TokenLogins | None = None
        self.auditor = NO_AUDITOR
        self.alarm = ""
        self.alarms = 0
        self.elsewhere = 0
        self.elsewhere_of_user = 0
        self.channels_elsewhere: dict[str, int] = {}
        self.next_number = first_number
        self.number_step = number_step
        self.stopping = False
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        self.turn_due = False
        self.served: list[int] = []
        self.served_before: list[int] = []

    def register(self, state: SharedState) -> None:
        """Add the state of a protocol."""
        self.states.append(state)

    def describe_turn(self) -> str:
        """Describe the clients served in this turn and the previous one, with their last operations."""
        numbers = list(dict.fromkeys([*self.served, *self.served_before]))
        shown = [self._describe_client(number) for number in numbers[:MAX_DESCRIBED]]
        if len(numbers) > MAX_DESCRIBED:
            shown.append(f"{len(numbers) - MAX_DESCRIBED} more")
        if self.broker.jobs.ran:
            shown.append(f"job {self.broker.jobs.ran}")
        return ", ".join(shown) or "no client input"

    def _describe_client(self, number: int) -> str:
        session = self.numbered.get(number)
        if session is None:
            return f"connection {number} (closed)"
        return f"connection {number}, {session.peer_name()} ({session.operation or 'messages'})"

    def end_turn_soon(self) -> None:
        """End the turn after all ready sockets have been read, to route, commit and write their input together."""
        if self.call_soon is None:
            self._end_turn()
        elif not self.turn_due:
            self.turn_due = True
            self.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self.turn_due = False
        self.served_before = self.served
        self.served = []
        self.broker.end_turn()
        self.broker.jobs.ran = ""

    def _users_changed(self) -> None:
        """Invalidate cached routes and permissions."""
        for vhost in self.broker.vhosts.values():
            vhost.topology_changed()
        for session in list(self.sessions):
            session.users_changed()
        for state in self.states:
            state.users_changed(self.users)

    def vhost_removed(self, vhost: Vhost) -> None:
        """Close the connections to a deleted vhost."""
        for session in list(self.sessions):
            session.vhost_removed(vhost)
        for state in self.states:
            state.vhost_removed(vhost)

    def check_limits(self, account: Account, vhost: Vhost, refusal: type[BrokerError]) -> None:
        """Check the limits on connections.

        Raises:
            BrokerError: `refusal`, if the user or the vhost has reached its limit.
            ResourceError: the broker has reached its limit.
        """
        limit = vhost.max_connections
        if 0 <= limit <= vhost.connections:
            source = f"the setting is vhosts.{vhost.name}.limits.max_connections"
            if limit != vhost.settings.max_connections:
                source = "the limit is set by the parameter 'limits' of component 'vhost-limits'"
            raise refusal(f"vhost '{vhost.name}' has {limit} connections, the maximum; {source}")
        user = account.name
        limit = account.limits.max_connections or self.settings.connections_per_user
        if limit and self.by_user.get(user, 0) + self.elsewhere_of_user >= max(limit, 0):
            raise refusal(
                f"user '{user}' has {max(limit, 0)} connections, the maximum; the setting is limits.connections_per_user"
            )
        limit = self.settings.connections
        if limit and sum(other.connections for other in self.broker.vhosts.values()) + self.elsewhere >= limit:
            raise ResourceError(f"the broker has {limit} connections, the maximum; the setting is limits.connections")

    def add(self, session: Session) -> None:
        self.sessions[session] = None
        self.numbered[session.number] = session

    def remove(self, session: Session) -> None:
        self.sessions.pop(session, None)
        self.numbered.pop(session.number, None)

    def new_number(self) -> int:
        number = self.next_number
        self.next_number = number + self.number_step
        return number

    def note_channels_elsewhere(self, counts: dict[str, int]) -> None:
        """Note the numbers of channels in other shards, by user."""
        self.channels_elsewhere = counts

    def check_channel_limit(self, user: str, limit: int) -> None:
        """Raise NotAllowed if the user has the maximum number of channels, counting the connections of all protocols.

        A negative limit allows none.
        """
        limit = max(limit, 0)
        self.broker.work += len(self.sessions) >> SUM_SHIFT
        here = sum(session.channel_count() for session in self.sessions if session.user == user)
        if here + self.channels_elsewhere.get(user, 0) >= limit:
            raise NotAllowed(
                f"user '{user}' has {limit} channels, the maximum; the setting is users.{user}.limits.max_channels"
            )

    def set_alarm(self, reason: str) -> None:
        """Block or resume the publishers of all sessions, in steps."""
        if reason == self.alarm:
            return
        if reason:
            logger.warning("%s alarm: publishers blocked", reason)
        else:
            logger.warning("%s alarm cleared: publishers resumed", self.alarm)
        self.alarm = reason
        self.broker.set_memory_alarm("memory" in reason)
        self.alarms += 1
        self.broker.jobs.run_steps(self._notify(self.alarms))
        self.broker.end_turn()

    def _notify(self, alarm: int) -> Iterator[int]:
        """Notify the sessions of a change of the alarm, until the next change. New sessions check `alarm` themselves."""
        for session in list(self.sessions):
            if alarm != self.alarms:
                return
            if session in self.sessions:
                session.alarm(self.alarm)
                yield ALARM_WORK + session.channel_count()
