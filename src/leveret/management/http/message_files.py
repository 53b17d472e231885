"""Messages of a queue as a file, and messages of a file that are published."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from leveret.management.definitions.conversation import Call
from leveret.management.http.control import Row
from leveret.management.http.errors import BrokerRefused, BrokerUnavailable, bad_request
from leveret.management.http.in_place import check_conditions, check_queue, numbers_of, with_body
from leveret.management.http.masks import MAX_JSON
from leveret.management.http.request import Answer, BrokenUpload, CutOff, Request, exchange_of
from leveret.management.message_files import NOTHING, Batch, Export, Form, Import, Incomplete, Steps

logger = logging.getLogger("leveret.http")

_TEXTS: Final = ("state", "since", "selector", "encoding")
_NUMBERS: Final = ("offset", "count", "queue_id")
_KEYS: Final = (*_TEXTS, *_NUMBERS, "where")
# By the form of the file: its content type and the ending of its name.
_FORMS: Final[dict[Form, tuple[str, str]]] = {
    "lines": ("application/jsonl", "jsonl"),
    "array": ("application/json", "json"),
}
# Characters that names of files do not have.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME: Final = 100


async def export(request: Request) -> Answer:
    """Return messages of a queue, complete and with AMQP types, as a file; the parameters are those of a search."""
    wanted: Row = {name: request.query[name] for name in _TEXTS if name in request.query}
    wanted |= numbers_of(request, *_NUMBERS)
    ids = None
    try:
        if "where" in request.query:
            wanted["where"] = msgspec.json.decode(request.query["where"], type=list[Row])
        if "ids" in request.query:
            ids = [int(number) for number in request.query["ids"].split(",")]
    except (ValueError, UnicodeEncodeError):
        raise bad_request(
            "invalid value of 'where' or 'ids'; expected conditions as JSON, and numbers with commas"
        ) from None
    return await _export(request, wanted, ids, request.query.get("format", "lines"))


async def export_selected(request: Request) -> Answer:
    """Return messages of a queue as a file; the keys of the body are those of a search, or `ids`."""
    body = request.body()
    try:
        ids = msgspec.convert(body.get("ids"), list[int] | None)
    except msgspec.ValidationError:
        raise bad_request("invalid value of 'ids'; expected a list of numbers") from None
    return await _export(request, with_body(request, *_KEYS), ids, body.get("format", "lines"))


async def _export(request: Request, wanted: Row, ids: list[int] | None, form: object) -> Answer:
    if form != "lines" and form != "array":
        raise bad_request(f"unknown format '{form}'; expected one of {', '.join(_FORMS)}")
    await check_queue(request)
    check_conditions(request, wanted)
    download = _Download(request, wanted, ids, form)
    await download.begin()
    content_type, ending = _FORMS[form]
    name = _NOT_IN_NAMES.sub("_", request.name)[:_MAX_NAME]
    headers = (
        ("content-type", content_type),
        ("content-disposition", f'attachment; filename="{name}.{ending}"'),
    )
    return Answer(headers=headers, stream=download.content())


class _Download:
    """The content of an export. Fields that are hidden from the user are hidden in it, and each message says so."""

    def __init__(self, request: Request, wanted: Row, ids: list[int] | None, form: Form) -> None:
        self._request = request
        masks = request.masks
        self._is_masked = masks.in_body or masks.in_properties
        source: Row = {"vhost": request.vhost, "queue": request.name, **wanted}
        limit = source.pop("count", None)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise bad_request("invalid value of 'count'; expected a number of at least 1")
        if self._is_masked:
            source |= {"typed": False, "truncate": MAX_JSON}
        self._export = Export(source, ids=ids, limit=limit, form=form, reads_ranges=not masks.in_body)
        self._steps: Steps = self._export.steps()
        self._first: Any = None
        self._begun = b""
        self._has_ended = False

    async def begin(self) -> None:
        """Read the first messages. Raises `HttpError` or `BrokerRefused` if the request is invalid."""
        try:
            step = self._steps.send(None)
        except StopIteration as end:
            self._begun, self._has_ended = end.value, True
            return
        self._begun = step.content
        self._first = await self._call(step.call)

    async def content(self) -> AsyncIterator[bytes]:
        """Yield the content. Raises `CutOff`."""
        content, result = self._begun, self._first
        self._first = None
        if self._has_ended:
            yield content
            return
        try:
            while True:
                try:
                    step = self._steps.send(result)
                except StopIteration as end:
                    yield content + end.value
                    break
                if content or step.content:
                    yield content + step.content
                content = b""
                result = await self._call(step.call)
        except (Incomplete, BrokerRefused, BrokerUnavailable) as error:
            raise CutOff(str(error)) from None
        logger.info(
            "exported %d messages of queue '%s' in vhost '%s' for user '%s'; %d skipped, %d not in the queue any more",
            self._export.messages,
            self._request.name,
            self._request.vhost,
            self._request.identity.name,
            self._export.skipped,
            self._export.missing,
        )

    async def _call(self, call: Call) -> Any:
        """Execute a call. Return None for a message that is not in the queue any more."""
        try:
            result = await self._request.control.call(call.name, call.arguments, user=self._request.identity.name)
        except BrokerRefused as refused:
            if refused.condition == "not-found" and call.name == "messages.payload":
                return None
            raise
        if self._is_masked and call.name == "messages.export":
            await self._request.masks.apply(result["messages"])
            for message in result["messages"]:
                message["masked"] = True
        return result


async def import_messages(request: Request) -> Answer:
    """Publish messages of a file, each to its exchange and with its routing key."""
    return await _import(request, {})


async def import_to_exchange(request: Request) -> Answer:
    """Publish messages of a file to an exchange; `routing_key` of the query replaces their routing keys."""
    target: Row = {"exchange": exchange_of(request.name)}
    if "routing_key" in request.query:
        target["routing_key"] = request.query["routing_key"]
    return await _import(request, target)


async def import_to_queue(request: Request) -> Answer:
    """Add messages of a file to a queue. They keep their exchanges and routing keys."""
    await check_queue(request)
    return await _import(request, {"queue": request.name})


async def _import(request: Request, target: Row) -> Answer:
    upload = _Upload(request, target)
    try:
        status = await upload.run()
    finally:
        request.changed()
    return upload.answer(status)


class _Upload:
    """A file that is published while it is received."""

    def __init__(self, request: Request, target: Row) -> None:
        self._request = request
        self._target = target
        self._import = Import()

    async def run(self) -> int:
        """Publish the messages, and return the status of the answer. Raises `BrokerRefused` if none is published."""
        chunks = self._request.chunks
        try:
            async for content in chunks:
                if not self._import.stopped:
                    await self._publish_all(self._import.feed(content))
            if not self._import.stopped:
                await self._publish_all(self._import.finish())
        except BrokenUpload as error:
            self._import.stop(str(error))
            return error.status
        return 503 if self._import.stopped else 200

    async def _publish_all(self, batches: Iterator[Batch]) -> None:
        for batch in batches:
            await self._publish(batch)
            if self._import.stopped:
                return

    async def _publish(self, batch: Batch) -> None:
        request = self._request
        wanted = {"vhost": request.vhost, "messages": batch.messages, **self._target}
        result = NOTHING
        try:
            if batch.messages:
                result = await request.control.call("messages.import", wanted, user=request.identity.name)
        except BrokerRefused as refused:
            if refused.condition == "internal-error":
                self._import.lose(batch, str(refused))
            elif self._import.lines:
                self._import.stop(str(refused))
            else:
                raise
        except BrokerUnavailable as error:
            self._import.lose(batch, str(error))
        else:
            self._import.answered(batch, result)

    def answer(self, status: int) -> Answer:
        """Return the answer, and log the result."""
        report = self._import.report()
        logger.info(
            "import by user '%s' into vhost '%s': %s",
            self._request.identity.name,
            self._request.vhost,
            self._import.summary(),
        )
        if status != 200:
            report |= {"error": "incomplete", "reason": f"{self._import.stopped}; {self._import.summary()}"}
        return Answer(status, report)
