"""Import of definitions: compare each object of a file with the broker, and change what differs.

Objects are imported in the order of their references. A refused object does not prevent the others. The broker applies
the changes in batches (`operations/batches.py`), each of which takes bounded turns and one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from leveret.management.definitions.conversation import Call, Conversation, Row
from leveret.management.definitions.document import Document
from leveret.management.definitions.exporting import NoSuchVhost
from leveret.management.definitions.report import Difference, Report
from leveret.management.definitions.sections import (
    SECRETS,
    SECTIONS,
    VHOSTS,
    Entry,
    Existing,
    Key,
    Known,
    Refused,
    Section,
    Skipped,
)
from leveret.management.redaction import without_secrets

# Maximum number of changes, and of bytes as JSON, in a batch. Each waits for a commit. The control socket takes requests of
# up to 1 MiB.
MAX_CHANGES: Final = 1000
MAX_BATCH_SIZE: Final = 256 << 10
MAX_CHANGE_SIZE: Final = 960 << 10
# The objects that are compared in one turn of an event loop.
_COMPARED: Final = 100
_HIDDEN: Final = "***"
_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an import.

    Attributes:
        vhost: The only vhost to import into; None for all vhosts of the file.
        dry_run: Whether to report the differences without changing anything.
        keep_default: Whether the default user remains when users are imported.
        keep_passwords: Whether a user whose hash Leveret has replaced keeps its password.
        progress: Called with the number of processed objects and the total after each batch, if any.
    """

    vhost: str | None = None
    dry_run: bool = False
    keep_default: bool = False
    keep_passwords: bool = False
    progress: Callable[[int, int], None] | None = None


def import_document(document: Document, options: Options) -> Conversation[Report]:
    """Import definitions. Raises `NoSuchVhost`."""
    return (yield from _Import(document, options).run())


class _Change:
    """An object of the file that differs from the broker.

    Args:
        section: Its section.
        entry: The object in the file.
        existing: The object of the broker, or None.
        note: What the report says of it if it is imported.
    """

    def __init__(self, section: Section[Any], entry: Entry, existing: Existing | None, note: str) -> None:
        self.section = section
        self.entry = entry
        self.existing = existing
        self.note = note
        self.before, self.after = section.difference(entry, existing)
        self.refused = False

    def describe(self, reason: str = "") -> Difference:
        """Return the object for a report."""
        is_new = self.existing is None
        return Difference(
            kind=self.section.noun,
            label=self.section.label(self.entry),
            identity={name: self.entry[name] for name in self.section.identity},
            before=None if is_new or not self.after else _without_secrets(self.before),
            after=_without_secrets(self.after) if self.after else None,
            reason=reason,
        )

    def result(self) -> Existing:
        """Return the object as it is after the change."""
        if self.existing is None:
            return Existing(self.entry)
        return replace(self.existing, entry={**self.existing.entry, **self.entry})


def _without_secrets(values: Entry) -> Entry:
    known = {name: value for name, value in values.items() if name not in SECRETS}
    shown = {name: without_secrets(value, _HIDDEN) for name, value in known.items()}
    return shown if len(shown) == len(values) else {**shown, "password": _HIDDEN}


class _Import:
    def __init__(self, document: Document, options: Options) -> None:
        self._document = document
        self._options = options
        self._known = Known({}, options.keep_passwords)
        changes_users = any(document.of(name) for name in ("users", "permissions", "topic_permissions"))
        self._stores_default = options.keep_default and changes_users and not options.dry_run
        self._keeps_default = options.keep_default or not changes_users
        self._report = Report(dry_run=options.dry_run, total=sum(len(items) for items in document.sections.values()))
        # The calls of the batch, each with its object, and their size.
        self._changes: list[tuple[Call, _Change]] = []
        self._size = 0
        self._done = 0

    def run(self) -> Conversation[Report]:
        if self._stores_default:
            yield Call("users.keep_default", {})
        yield from self._read_broker()
        for section in SECTIONS:
            for index, item in enumerate(self._document.of(section.name)):
                change = self._compare(section, index, item)
                if change is not None:
                    yield from self._add(change)
                self._done += 1
                if self._done % _COMPARED == 0:
                    yield None
        yield from self._send()
        return self._report

    def _read_broker(self) -> Conversation[None]:
        """Read the objects of the sections of the file, and of those that they refer to."""
        vhost = self._options.vhost
        wanted = {VHOSTS.name}
        for section in SECTIONS:
            if self._document.of(section.name):
                wanted.update((section.name, *section.needs))
        for section in SECTIONS:
            if section.name in wanted:
                rows: list[Row] = yield Call(section.list_call, section.list_arguments(vhost))
                self._known.objects[section.name] = self._objects(section, rows)
            if section is VHOSTS and vhost is not None and self._known.find(VHOSTS.name, vhost) is None:
                raise NoSuchVhost(f"vhost '{vhost}' does not exist")

    def _objects(self, section: Section[Any], rows: list[Row]) -> dict[Key, Existing]:
        """Return objects by key. The default user does not count unless it remains: the first new user removes it."""
        found = [section.existing(row) for row in rows]
        if section is not VHOSTS and not self._keeps_default:
            found = [existing for existing in found if existing.source != _DEFAULT]
        return {section.key(existing.entry): existing for existing in found}

    def _compare(self, section: Section[Any], index: int, item: object) -> _Change | None:
        """Return the change that an object of the file requires, or None if there is none."""
        try:
            entry = section.read(item, self._options.vhost)
        except Refused as error:
            label = f"number {index + 1} of '{section.name}'"
            self._report.refused.append(Difference(kind=section.noun, label=label, reason=str(error)))
            return None
        key = section.key(entry)
        existing = self._known.objects[section.name].get(key)
        prepared, note = section.prepared(entry, existing, self._known), section.note(entry, self._known)
        change = _Change(section, prepared, existing, note)
        try:
            section.check(entry, self._known)
            if existing is not None and not change.after:
                self._report.unchanged += 1
                return None
            if existing is not None:
                section.check_change(entry, existing)
        except Skipped as skipped:
            self._report.skipped.append(change.describe(str(skipped)))
            return None
        except Refused as refused:
            self._report.refused.append(change.describe(str(refused)))
            return None
        self._known.objects[section.name][key] = change.result()
        return change

    def _add(self, change: _Change) -> Conversation[None]:
        """Add a change to the batch, after sending the batch if it is full."""
        calls = change.section.calls(change.entry, change.existing, self._known)
        size = sum(len(msgspec.json.encode(call.arguments)) for call in calls)
        if size > MAX_CHANGE_SIZE:
            reason = f"it has {size} bytes; expected at most {MAX_CHANGE_SIZE}"
            self._report.refused.append(change.describe(reason))
            return
        if self._changes and (len(self._changes) + len(calls) > MAX_CHANGES or self._size + size > MAX_BATCH_SIZE):
            yield from self._send()
        self._changes += [(call, change) for call in calls]
        self._size += size

    def _send(self) -> Conversation[None]:
        """Send the batch, and report its objects."""
        changes, self._changes, self._size = self._changes, [], 0
        if changes:
            operation = "definitions.check" if self._options.dry_run else "definitions.apply"
            wanted = [{"call": call.name, "arguments": call.arguments} for call, _ in changes]
            reply = yield Call(operation, {"changes": wanted})
            for refusal in reply["refused"]:
                change = changes[refusal["index"]][1]
                if not change.refused:
                    change.refused = True
                    self._report.refused.append(change.describe(refusal["text"]))
            for change in dict.fromkeys(change for _, change in changes):
                if not change.refused:
                    kind = self._report.added if change.existing is None else self._report.changed
                    kind.append(change.describe(change.note))
        if self._options.progress is not None:
            self._options.progress(self._done, self._report.total)
