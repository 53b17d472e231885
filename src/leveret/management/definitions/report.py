"""Reports of imports: what was added, changed, left as it is and refused."""

from __future__ import annotations

from typing import Final

import msgspec

from leveret.management.definitions.conversation import Row

# Maximum number of objects in a text.
_MAX_NAMED: Final = 5


class Difference(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An object that differs between the file and the broker.

    Attributes:
        kind: The noun of its section, such as `queue`.
        label: The name of the object in messages.
        identity: The keys that identify it.
        before: The values of the keys that differ, in the broker.
        after: The values of the keys that differ, in the file.
        reason: Why it is not changed, or changed to another value than that in the file.
    """

    kind: str
    label: str
    identity: Row = {}
    before: Row | None = None
    after: Row | None = None
    reason: str = ""


class Report(msgspec.Struct, kw_only=True):
    """The result of an import, or of a dry run.

    Attributes:
        dry_run: Whether nothing was changed.
        total: The number of objects in the file.
        unchanged: The number of objects that were equal before.
        added: Objects that the broker did not have.
        changed: Objects that the broker had with other values.
        skipped: Objects that are left as they are on purpose.
        refused: Objects that cannot be imported.
    """

    dry_run: bool = False
    total: int = 0
    unchanged: int = 0
    added: list[Difference] = []
    changed: list[Difference] = []
    skipped: list[Difference] = []
    refused: list[Difference] = []

    def is_equal(self) -> bool:
        """Return whether the import changes nothing."""
        return not (self.added or self.changed or self.refused or any(item.after for item in self.skipped))

    def noted(self) -> list[Difference]:
        """Return the objects that were imported, but not as they are in the file."""
        return [item for item in self.added + self.changed if item.reason]

    def counts(self) -> str:
        """Return the numbers of objects as text."""
        parts = [f"{len(self.added)} added", f"{len(self.changed)} changed", f"{self.unchanged} unchanged"]
        parts += [f"{len(self.skipped)} skipped"] if self.skipped else []
        return ", ".join(parts + ([f"{len(self.refused)} refused"] if self.refused else []))

    def refusals(self) -> str:
        """Return the number of refused objects with the first reasons as text."""
        shown = [f"{item.label}: {item.reason}" for item in self.refused[:_MAX_NAMED]]
        if len(self.refused) > _MAX_NAMED:
            shown.append(f"{len(self.refused) - _MAX_NAMED} more")
        return f"{len(self.refused)} of {self.total} definitions refused: {'; '.join(shown)}"
