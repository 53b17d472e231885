"""Export and import of definitions."""

from __future__ import annotations

import logging
import re
from typing import Final

from leveret.management.definitions.conversation import conduct_async
from leveret.management.definitions.document import InvalidDocument, Origin, read_document
from leveret.management.definitions.exporting import NoSuchVhost, export
from leveret.management.definitions.importing import Options, import_document
from leveret.management.definitions.report import Report
from leveret.management.http.errors import HttpError, bad_request
from leveret.management.http.multipart import is_form, read_form
from leveret.management.http.request import NO_CONTENT, Answer, Request

logger = logging.getLogger("leveret.http")

_NO_VHOST: Final = "vhost_not_found"
_MAX_LOGGED: Final = 20
# Names of downloaded files: tokens of RFC 9110.
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,255}")
# Places to go after an upload: other paths and fragments of the same origin.
_REDIRECT: Final = re.compile(r"(?:(?:\.\./)*|/)(?:[A-Za-z0-9#_.~-][A-Za-z0-9#_./~-]*)?")


async def download(request: Request) -> Answer:
    """Return the definitions of the broker, or of the vhost in the path. `download` names the file to save them in.

    With `for=rabbitmq`, RabbitMQ can import them: they have no password hashes of argon2id.
    """
    settings = request.settings
    headers: list[tuple[str, str]] = []
    name = request.query.get("download")
    if name is not None:
        if _FILE_NAME.fullmatch(name) is None:
            raise bad_request("invalid value of 'download'; expected a file name of letters, digits, '-', '_' and '.'")
        headers.append(("content-disposition", f"attachment; filename={name}"))
    origin = Origin(settings.rabbitmq_version, settings.version, settings.node)
    try:
        exporting = export(origin, request.path.get("vhost"), for_rabbitmq=_is_for_rabbitmq(request))
        exported = await conduct_async(exporting, request.control.call)
    except NoSuchVhost:
        raise bad_request(_NO_VHOST) from None
    omitted = exported.without_passwords
    if omitted:
        headers.append(("x-leveret-omitted-hashes", str(len(omitted))))
        logger.warning(
            "definitions exported for RabbitMQ without the password hashes of %d users, who need a new password there: %s",
            len(omitted),
            ", ".join(omitted[:_MAX_LOGGED]) + (", ..." if len(omitted) > _MAX_LOGGED else ""),
        )
    return Answer(body=exported.document, headers=tuple(headers))


def _is_for_rabbitmq(request: Request) -> bool:
    target = request.query.get("for", "")
    if target not in ("", "rabbitmq"):
        raise bad_request("invalid value of 'for'; expected rabbitmq")
    return target == "rabbitmq"


async def upload(request: Request) -> Answer:
    """Import definitions into the broker, or into the vhost in the path. A refused object does not prevent the others.

    The body is the file, or a form with the fields `file` and, optionally, `redirect`. With `dry_run=true` in the query,
    nothing is changed, and the answer has the differences.
    """
    vhost = request.path.get("vhost")
    content, redirect = _file(request)
    options = Options(vhost=vhost, dry_run=request.asks_for("dry_run"), keep_default=True)
    try:
        document = read_document(content, vhost)
        report = await conduct_async(import_document(document, options), request.control.call)
    except InvalidDocument as error:
        raise bad_request(str(error)) from None
    except NoSuchVhost:
        raise HttpError(404, "Object Not Found", _NO_VHOST) from None
    finally:
        request.changed()
    if options.dry_run:
        return Answer(body=report)
    _log(report, request.identity.name)
    if report.refused:
        return Answer(400, {"error": "bad_request", "reason": report.refusals(), "refused": report.refused})
    if redirect is not None:
        return Answer(303, headers=(("location", redirect),))
    return NO_CONTENT


def _file(request: Request) -> tuple[bytes, str | None]:
    """Return the uploaded file, and where to go after a successful import. Raises `HttpError` (400)."""
    content_type = request.headers.get("content-type", "")
    if not is_form(content_type):
        return request.content, None
    form = read_form(request.content, content_type)
    if "file" not in form:
        raise bad_request("multipart/form-data without the field 'file'")
    redirect = form.get("redirect")
    if redirect is None:
        return form["file"], None
    target = redirect.decode("latin-1")
    if _REDIRECT.fullmatch(target) is None:
        raise bad_request("invalid value of 'redirect'; expected a path of the same origin")
    return form["file"], target


def _log(report: Report, user: str) -> None:
    logger.info("definitions imported by user '%s': %s", user, report.counts(), extra={"user": user})
    for item in (report.refused + report.noted() + report.skipped)[:_MAX_LOGGED]:
        logger.warning("definitions: %s: %s", item.label, item.reason, extra={"user": user})
