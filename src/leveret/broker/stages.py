"""Stages and the sinks that promote them: exactly once, whatever crashes.

A sink's writers publish to stages, each of its own, and seal them. One promotion then moves the messages of several stages
to where they are meant for. It belongs to a batch of an app, and batches of an app have numbers that grow: one that was
promoted before is not promoted again. The decision is one record of the log; the moving comes after it, and goes on after a
crash.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.broker import metadata
from leveret.broker.errors import MISTAKE, AccessRefused, BrokerError, NotFound, PreconditionFailed, ResourceError
from leveret.broker.exchanges.base import Exchange
from leveret.broker.exchanges.control import RESERVED
from leveret.broker.jobs import Job
from leveret.broker.promotion import FAIL, Promotion
from leveret.broker.queues.stage import SHARES, Stage, checksum_of
from leveret.broker.routing import Route
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.log import Recovery
    from leveret.broker.vhost import Vhost

logger = logging.getLogger("leveret.broker")

PREFIX: Final = "leveret.stage:"
STAGE_NAME: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
MAX_SWEEP_INTERVAL: Final = 60_000

Failed = Callable[[BrokerError], None]


class StageSettings:
    """What the configuration decides. Bytes, milliseconds and numbers.

    size     of what one stage may hold
    timeout  after which a stage is given up that nobody publishes to, seals or promotes
    count, apps  the most stages, and sinks whose last batch is known, of a vhost
    """

    def __init__(self, size: int = 16 << 30, timeout: int = 86_400_000, count: int = 10_000, apps: int = 10_000) -> None:
        self.size = size
        self.timeout = timeout
        self.count = count
        self.apps = apps


class App:
    """A sink: the number of its last batch that was decided to be promoted, and whose it is.

    promotion  of a batch, the last one or the one that follows; None while there is none
    following  what to do after it
    """

    __slots__ = ("batch", "following", "name", "promotion", "user")

    def __init__(self, name: str, user: str, batch: int) -> None:
        self.name = name
        self.user = user
        self.batch = batch
        self.promotion: Promotion | None = None
        self.following: list[Callable[[], None]] = []


class _Sweep(Timed):
    """Gives up what nobody has touched for too long."""

    def __init__(self, stages: Stages) -> None:
        super().__init__()
        self.stages = stages

    def fire(self, now: int) -> None:
        self.stages.sweep(now)


class _Verification(Job):
    """Reads the bodies of a stage of before the start again, for its checksum."""

    def __init__(self, stage: Stage, told: Callable[[], None], on_failure: Failed) -> None:
        super().__init__(stage.broker.jobs)
        self.stage = stage
        self.told = told
        self.on_failure = on_failure
        self.at = 0
        self.checksum = 0

    def step(self) -> bool:
        stage = self.stage
        if stage.deleted or stage.promotion is not None:
            self.told()
            return False
        if self.at >= len(stage.chunks):
            stage.checksum = self.checksum
            stage.known = True
            self.told()
            return False
        chunk = stage.chunks[self.at]
        if not stage.need(chunk, self):
            return False
        for message in chunk.messages or ():
            self.checksum = checksum_of(stage.broker.content_of(message), self.checksum)
        self.at += 1
        stage.page_out(stage.broker.page_above >> 1)
        return True

    def failed(self) -> None:
        self.on_failure(BrokerError(MISTAKE))


class Stages:
    """Those of one vhost.

    by_uuid  the stages; apps: the sinks, by name
    memory   bytes of messages of stages in memory
    """

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.broker = vhost.broker
        self.settings = vhost.broker.stage_settings
        self.by_uuid: dict[str, Stage] = {}
        self.apps: dict[str, App] = {}
        self.memory = 0
        self.timer = _Sweep(self)

    @property
    def max_bytes(self) -> int:
        return self.settings.size

    def prefix_of(self, uuid: str) -> str:
        """How names of exchanges begin under which the stage takes messages."""
        return f"{PREFIX}{uuid}:"

    # Publishing

    def route(self, name: str, routing_key: str) -> Route | None:
        """The route of a publish to an exchange of this name, None where it names no stage. NotFound, AccessRefused."""
        if not name.startswith(PREFIX):
            return None
        stage, exchange = self._parse(name)
        return Route(exchange, exchange.name, routing_key, [stage], False, None, stage.user)

    def exchange(self, name: str) -> Exchange | None:
        """The exchange that is meant by the name of a stage and an exchange; None for another name."""
        return self._parse(name)[1] if name.startswith(PREFIX) else None

    def _parse(self, name: str) -> tuple[Stage, Exchange]:
        uuid, colon, exchange_name = name[len(PREFIX) :].partition(":")
        if not colon:
            raise NotFound(f"no exchange '{name}': expected {PREFIX}STAGE:EXCHANGE")
        stage = self._stage(uuid)
        self.check_exchange(exchange_name)
        return stage, self.vhost.exchange(exchange_name)

    def check_exchange(self, name: str) -> None:
        """Raise AccessRefused for an exchange to which stages cannot publish."""
        if name.startswith(RESERVED):
            raise AccessRefused(f"exchange '{name}' cannot be published to from a stage")

    def _stage(self, uuid: str) -> Stage:
        stage = self.by_uuid.get(uuid)
        if stage is None:
            raise NotFound(f"no stage '{uuid[:80]}' in vhost '{self.vhost.name}': it was never opened, was promoted, or was"
                           " given up")
        return stage

    def own(self, uuid: str, user: str) -> Stage:
        """A stage of this user. NotFound, AccessRefused."""
        stage = self._stage(uuid)
        if stage.user != user:
            raise AccessRefused(f"stage '{uuid}' in vhost '{self.vhost.name}' is another user's")
        return stage

    # The life of a stage

    def open(self, uuid: str, app: str, user: str) -> None:
        """Make a stage; nothing happens where there is the same one already and it is empty."""
        if STAGE_NAME.fullmatch(uuid) is None:
            raise PreconditionFailed(f"stage '{uuid[:80]}' may have 1 to 64 letters, digits and hyphens")
        self._check_app(app, user)
        if uuid in self.by_uuid:
            stage = self.own(uuid, user)
            if stage.app != app or stage.count or stage.sealed:
                raise PreconditionFailed(f"stage '{uuid}' exists already: a new one needs a name of its own")
            return
        if len(self.by_uuid) >= self.settings.count:
            raise ResourceError(f"vhost '{self.vhost.name}' has its most stages, {self.settings.count}; the setting is"
                                " sink_transactions.max_per_vhost")
        stage = self.by_uuid[uuid] = Stage(self, self.broker.new_queue_id(), uuid, user, app)
        self._keep(stage)
        self._watch()

    def seal(self, uuid: str, user: str, count: int, checksum: int, done: Callable[[], None], failed: Failed) -> None:
        """Nothing more is published to a stage, and it must hold just this. It may be sealed again by the same figures."""
        stage = self.own(uuid, user)
        if stage.failed:
            raise PreconditionFailed(f"a message of a transaction is missing: {stage.failed}")
        if stage.count != count and stage.promotion is None:
            raise PreconditionFailed(f"stage '{uuid}' holds {stage.count} messages, expected {count}")
        if stage.known or stage.promotion is not None:
            self._seal(stage, checksum)
            done()
            return

        def verified() -> None:
            try:
                if stage.deleted:
                    raise stage.refusal()
                if stage.count != count and stage.promotion is None:
                    raise PreconditionFailed(f"stage '{uuid}' holds {stage.count} messages, expected {count}")
                self._seal(stage, checksum)
            except BrokerError as error:
                failed(error)
            else:
                done()

        _Verification(stage, verified, failed).resume()

    def _seal(self, stage: Stage, checksum: int) -> None:
        if stage.known and stage.checksum != checksum:
            raise PreconditionFailed(f"the bodies in stage '{stage.uuid}' have the CRC-32 {stage.checksum:#010x}, expected"
                                     f" {checksum:#010x}")
        if not stage.sealed:
            stage.sealed = True
            stage.idle_since = self.broker.timers.now()
            self._keep(stage)

    def discard(self, uuid: str) -> bool:
        """Give a stage up with all that is in it; False where there is none."""
        stage = self.by_uuid.get(uuid)
        if stage is None:
            return False
        if stage.promotion is not None:
            raise PreconditionFailed(f"stage '{uuid}' is being promoted")
        stage.give_up()
        self.forget(stage)
        return True

    def forget(self, stage: Stage) -> None:
        """A stage is empty, and was ended."""
        del self.by_uuid[stage.uuid]
        self.broker.log.put(metadata.STAGE, metadata.make_key(self.vhost.name, stage.uuid), None)

    def _keep(self, stage: Stage) -> None:
        self.broker.log.put(metadata.STAGE, metadata.make_key(self.vhost.name, stage.uuid), metadata.pack({
            "id": stage.id, "user": stage.user, "app": stage.app, "sealed": stage.sealed}))

    # Promotion

    def last(self, app: str, user: str) -> int | None:
        """The number of the last batch of an app, None where there is none yet."""
        known = self._check_app(app, user)
        return None if known is None else known.batch

    def _check_app(self, name: str, user: str) -> App | None:
        known = self.apps.get(name)
        if known is not None and known.user != user:
            raise AccessRefused(f"app '{name}' in vhost '{self.vhost.name}' is another user's; `leveret"
                                " sink-transactions forget` removes it")
        return known

    def promote(self, name: str, user: str, batch: int, uuids: list[str], rule: int, exchange: str | None, key: str | None,
                done: Callable[[int, int, bool], None], failed: Failed) -> None:
        """Promote a batch. `done` is told how many messages were moved, how many of them had no queue, and whether the
        batch was promoted before; it is called when all that is written."""
        app = self._check_app(name, user)
        running = None if app is None else app.promotion
        if app is not None and running is not None and running.batch != batch:

            def again() -> None:
                try:
                    self.promote(name, user, batch, uuids, rule, exchange, key, done, failed)
                except BrokerError as error:
                    failed(error)

            app.following.append(again)
            return
        if running is not None and not running.decided:
            # The same request once more: its answer was lost, or took too long.
            running.also.append((done, failed))
            return
        if app is not None and batch <= app.batch:
            if batch < app.batch:
                raise PreconditionFailed(f"batch {batch} of app '{name}' comes after batch {app.batch}, which was promoted"
                                         " already")
            for uuid in uuids:
                stage = self.by_uuid.get(uuid)
                if stage is not None and stage.user == user and stage.promotion is None:
                    self.discard(uuid)
            done(0, 0, True)
            return
        if app is None and len(self.apps) >= self.settings.apps:
            raise ResourceError(f"vhost '{self.vhost.name}' has its most apps, {self.settings.apps}; the setting is"
                                " sink_transactions.max_apps, and `leveret sink-transactions forget` removes one")
        staged = self._sealed(uuids, name, user)
        if app is None:
            app = self.apps[name] = App(name, user, -1)
        promotion = Promotion(self, app, batch, staged, rule, exchange, key)
        promotion.also.append((done, failed))
        promotion.begin()

    def _sealed(self, uuids: list[str], app: str, user: str) -> list[Stage]:
        staged: list[Stage] = []
        for uuid in uuids:
            stage = self.own(uuid, user)
            if stage.app != app:
                raise PreconditionFailed(f"stage '{uuid}' was opened for app '{stage.app}', not for '{app}'")
            if not stage.sealed:
                raise PreconditionFailed(f"stage '{uuid}' is not sealed")
            if stage.promotion is not None or stage in staged:
                raise PreconditionFailed(f"stage '{uuid}' is promoted once only")
            staged.append(stage)
        return staged

    def decide(self, promotion: Promotion) -> None:
        """Write the decision: from now on the batch is promoted, whatever happens."""
        app = promotion.app
        app.batch = promotion.batch
        self._keep_app(app)

    def moved(self, promotion: Promotion) -> None:
        """The last messages are moved with the batch that is being filled."""
        for stage in promotion.staged:
            stage.end()
            self.forget(stage)
        promotion.staged = []
        self._keep_app(promotion.app)

    def ended(self, promotion: Promotion) -> None:
        """A promotion is over, well or not."""
        app = promotion.app
        app.promotion = None
        if app.batch < 0:
            self.apps.pop(app.name, None)
        following = app.following
        app.following = []
        for call in following:
            call()

    def _keep_app(self, app: App) -> None:
        value: dict[str, Any] = {"user": app.user, "batch": app.batch}
        promotion = app.promotion
        if promotion is not None and promotion.staged:
            value.update(stages=[stage.uuid for stage in promotion.staged], rule=promotion.rule,
                         exchange=promotion.exchange, key=promotion.key)
        self.broker.log.put(metadata.STAGE_APP, metadata.make_key(self.vhost.name, app.name), metadata.pack(value))

    def forget_app(self, name: str) -> None:
        """Forget the last batch of an app: if it is promoted again, nobody will notice. NotFound, PreconditionFailed."""
        app = self.apps.get(name)
        if app is None:
            raise NotFound(f"no app '{name}' in vhost '{self.vhost.name}'")
        if app.promotion is not None:
            raise PreconditionFailed(f"batch {app.promotion.batch} of app '{name}' is being promoted")
        del self.apps[name]
        self.broker.log.put(metadata.STAGE_APP, metadata.make_key(self.vhost.name, name), None)

    # Time, memory, the end

    def _watch(self) -> None:
        if not self.timer.due and self.by_uuid and self.settings.timeout:
            timers = self.broker.timers
            timers.at(timers.now() + min(self.settings.timeout // 4 + 1, MAX_SWEEP_INTERVAL), self.timer)

    def sweep(self, now: int) -> None:
        """Give up stages that nobody has published to, sealed or promoted for too long."""
        for stage in list(self.by_uuid.values()):
            if stage.count != stage.seen:
                stage.seen = stage.count
                stage.idle_since = now
            elif stage.promotion is None and now - stage.idle_since >= self.settings.timeout:
                logger.warning("stage '%s' of app '%s' in vhost '%s' is given up with %d messages: nobody has promoted it"
                               " (sink_transactions.timeout)", stage.uuid, stage.app, self.vhost.name, stage.count)
                self.discard(stage.uuid)
        self._watch()

    def page_down(self) -> None:
        """Keep no more in memory than the share of each stage, and of all together, is now."""
        above = self.broker.page_above
        if self.memory > above * SHARES:
            above = min(above, above * SHARES // len(self.by_uuid))
        for stage in self.by_uuid.values():
            if stage.memory > above:
                stage.page_out(above)

    def clear(self) -> None:
        """The vhost is deleted."""
        for app in self.apps.values():
            if app.promotion is not None:
                app.promotion.abandon()
            self.broker.log.put(metadata.STAGE_APP, metadata.make_key(self.vhost.name, app.name), None)
        self.apps.clear()
        for stage in list(self.by_uuid.values()):
            stage.promotion = None
            self.discard(stage.uuid)
        self.broker.timers.cancel(self.timer)

    # After a start

    def restore_stage(self, uuid: str, value: dict[str, Any], recovery: Recovery) -> None:
        stage = self.by_uuid[uuid] = Stage(self, value["id"], uuid, value["user"], value["app"])
        stage.sealed = value["sealed"]
        stage.next_seq = recovery.last_seq.get(stage.id, 0) + 1
        stage.recover_entries(recovery.queues.get(stage.id))

    def restore_app(self, name: str, value: dict[str, Any]) -> None:
        app = self.apps[name] = App(name, value["user"], value["batch"])
        staged = [self.by_uuid[uuid] for uuid in value.get("stages", ()) if uuid in self.by_uuid]
        if "stages" in value:
            promotion = Promotion(self, app, app.batch, staged, value["rule"], value["exchange"], value["key"])
            promotion.decided = True

    def start(self) -> None:
        """After recovery, with the log committing: go on with what was decided."""
        for app in self.apps.values():
            if app.promotion is not None:
                app.promotion.resume()
        self._watch()


__all__ = ["FAIL", "PREFIX", "App", "StageSettings", "Stages"]
