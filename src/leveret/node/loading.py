"""Import of the definitions file of `management.load_definitions` at the start."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from leveret.broker.errors import BrokerError
from leveret.management.json_values import encode_json
from leveret.management.operations.operation import Operator
from leveret.node.errors import StartFailed

if TYPE_CHECKING:
    from leveret.management.admin import Admin
    from leveret.management.definitions.conversation import Row

    Execute: TypeAlias = Callable[[str, Row], Awaitable[object]]

logger = logging.getLogger("leveret.serve")


async def load_definitions(setting: str | None, execute: Execute) -> None:
    """Import the definitions file of the configuration, if any.

    Users whose password hash the broker has replaced keep their password.

    Args:
        setting: `management.load_definitions`.
        execute: Executes an operation for the operator, and returns its result as clients of the control socket receive it.

    Raises:
        StartFailed: The file cannot be read, is invalid, or has an object that the broker refuses. The others are imported.
    """
    if setting is None:
        return
    # Most brokers have no such file.
    from leveret.management.definitions.conversation import conduct_async
    from leveret.management.definitions.document import InvalidDocument, read_document
    from leveret.management.definitions.importing import Options, import_document

    where = f"'management.load_definitions': {setting}"
    try:
        document = read_document(Path(setting).read_bytes(), None)
        report = await conduct_async(import_document(document, Options(keep_passwords=True)), execute)
    except OSError as error:
        raise StartFailed(f"{where}: cannot read the file: {error.strerror}") from None
    except (InvalidDocument, BrokerError) as error:
        raise StartFailed(f"{where}: {error}") from None
    for item in report.skipped:
        logger.warning("%s: %s is not imported: %s", where, item.label, item.reason)
    for item in report.noted():
        logger.warning("%s: %s: %s", where, item.label, item.reason)
    if report.refused:
        raise StartFailed(f"{where}: {report.refusals()}")
    logger.info("%s: %s", where, report.counts())


def executor(admin: Admin) -> Execute:
    """Return a function that executes operations in this process, for `load_definitions`."""

    async def execute(name: str, arguments: Row) -> object:
        result = await admin.call(name, arguments, Operator())
        if isinstance(result, Iterator):
            return [_decoded(item) for item in result if item is not None]
        return _decoded(result)

    return execute


def _decoded(reply: object) -> object:
    """Return a reply as clients of the control socket receive it."""
    return msgspec.json.decode(encode_json(reply))
