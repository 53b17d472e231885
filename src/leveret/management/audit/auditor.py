"""The recorder of changes: it compares the definition of an object before and after an operation."""

from __future__ import annotations

from typing import Any

from leveret.management.audit.log import AuditLog
from leveret.management.audit.records import AuditRecord, bounded
from leveret.management.audit.subjects import CREDENTIAL, SUBJECTS, Subject, shown
from leveret.management.operations.operation import Auditor, Change, Context, VhostContext
from leveret.management.structs import Request


class RecordedChange(Change):
    """A change that becomes a record, unless the definition stays the same."""

    def __init__(
        self,
        log: AuditLog,
        action: str,
        subject: Subject[Any, Any],
        context: Context | VhostContext,
        request: Request,
    ) -> None:
        self._log = log
        self._action = action
        self._subject = subject
        self._context = context
        self._request = request
        self._before = subject.state(context, request) if subject.state is not None else None
        self._credential = _taken_credential(self._before)

    def done(self, result: object = None) -> None:
        subject, context, request = self._subject, self._context, self._request
        credential = ""
        after: object
        if subject.state is None:
            after = shown(request, result)
        else:
            after = subject.state(context, request)
            credential = _taken_credential(after)
            if after == self._before and credential == self._credential:
                return
        shown_after = bounded(after)
        if credential not in ("", self._credential) and isinstance(shown_after, dict):
            shown_after["new_password"] = True
        self._log.add(
            AuditRecord(
                time=0,
                user=context.principal.actor,
                source=context.principal.source,
                action=self._action,
                kind=subject.kind,
                vhost=subject.vhost(context, request),
                name=subject.name(request),
                before=bounded(self._before),
                after=shown_after,
            )
        )


def _taken_credential(state: object) -> str:
    """Remove the identifier of a password from the state of a user, and return it; "" for none."""
    return str(state.pop(CREDENTIAL, "")) if isinstance(state, dict) else ""


class LoggingAuditor(Auditor):
    """Records the changes of a broker."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def begin(self, operation: object, context: Context | VhostContext, request: Request) -> Change | None:
        found = SUBJECTS.get(id(operation))
        if found is None:
            return None
        action, subject = found
        return RecordedChange(self._log, action, subject, context, request)
