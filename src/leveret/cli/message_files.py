"""`leveret messages export` and `import`: messages of a queue as files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import click

from leveret.cli.failed import INCOMPLETE, Failed
from leveret.cli.output import Item, Reply, StatusLine, show_json
from leveret.cli.queue_messages import (
    encoding_option,
    messages,
    queue_id_option,
    since_option,
    state_option,
    where_options,
)
from leveret.cli.remote import Refused, Remote, current, in_vhost_option, remote_options
from leveret.management.message_files import NOTHING, Batch, Export, Form, Import, Incomplete

__all__ = ["messages"]

_READ_SIZE: Final = 1 << 18
_STANDARD: Final = "-"
# The condition of an error after which messages may be published or not.
_UNCERTAIN: Final = "internal-error"


@messages.command()
@click.argument("queue")
@click.option("--output", metavar="FILE", default=_STANDARD, help="The file to write.  [default: standard output]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "array"]),
    default="lines",
    show_default=True,
    help="One message per line, or a JSON array with one message per line.",
)
@click.option("--id", "ids", type=int, multiple=True, help="Id of a message, as `browse` shows it; repeatable.")
@where_options
@state_option
@since_option
@click.option("--offset", type=click.IntRange(0), default=0, help="Messages to skip; of a stream, the first offset.")
@click.option("--count", type=click.IntRange(1), help="Maximum number of messages.  [default: all]")
@encoding_option
@queue_id_option
@in_vhost_option
@remote_options
def export(queue: str, output: str, form: Form, ids: tuple[int, ...], count: int | None, **options: Reply) -> None:
    """Write messages of QUEUE to a file. It has all properties, headers and types. The messages stay in the queue."""
    broker = current()
    wanted = {key: value for key, value in options.items() if value not in (None, [], "", 0)}
    if ids and (count or not wanted.keys() <= {"vhost", "state", "encoding", "queue_id"}):
        raise click.UsageError("--id excludes --where, --selector, --since, --offset and --count")
    exported = Export({"queue": queue, **wanted}, ids=ids or None, limit=count, form=form)
    try:
        with _opened(output) as file:
            _write(broker, exported, file)
    except OSError as error:
        raise Failed(f"cannot write {output}: {error.strerror}") from None
    except Incomplete as error:
        raise Failed(str(error), INCOMPLETE) from None
    _show_exported(broker, exported, queue, output)


def _write(broker: Remote, exported: Export, file: BinaryIO) -> None:
    steps = exported.steps()
    result: Reply = None
    with StatusLine(not broker.as_json) as line:
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                file.write(end.value)
                return
            file.write(step.content)
            line.show(f"exported {exported.messages:,} of {exported.examined:,} messages")
            # A message that has left its queue is no error, unlike a missing queue.
            execute = broker.find if step.call.name == "messages.payload" else broker.call
            result = execute(step.call.name, **step.call.arguments)


@contextmanager
def _opened(output: str) -> Iterator[BinaryIO]:
    """Open a file, which has its name only when it is complete."""
    if output == _STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    begun = path.with_name(f"{path.name}.part")
    try:
        with begun.open("wb") as file:
            yield file
        begun.replace(path)
    finally:
        begun.unlink(missing_ok=True)


def _show_exported(broker: Remote, exported: Export, queue: str, output: str) -> None:
    if broker.as_json and output != _STANDARD:
        keys = ("messages", "examined", "skipped", "missing")
        show_json({key: getattr(exported, key) for key in keys})
    else:
        to = "" if output == _STANDARD else f" to {output}"
        click.echo(f"exported {exported.messages:,} messages of queue '{queue}'{to}", err=output == _STANDARD)
    if exported.skipped:
        click.echo(f"{exported.skipped:,} messages were left out: their JSON is too large to be compared", err=True)
    if exported.missing:
        raise Failed(f"{exported.missing:,} messages were left out: they are not in the queue any more", INCOMPLETE)


@messages.command("import")
@click.argument("file")
@click.option("--exchange", metavar="NAME", help="The exchange for all messages.  [default: that of each message]")
@click.option("--routing-key", help="The routing key for all messages.  [default: that of each message]")
@click.option("--queue", metavar="NAME", help="The queue that gets all messages, each with its exchange and routing key.")
@in_vhost_option
@remote_options
def import_messages(file: str, exchange: str | None, routing_key: str | None, queue: str | None, vhost: str) -> None:
    """Publish the messages of a file. `export` has written FILE; - is standard input."""
    if queue is not None and (exchange is not None or routing_key is not None):
        raise click.UsageError("--queue excludes --exchange and --routing-key")
    broker = current()
    target: Item = {"vhost": vhost, "exchange": exchange, "routing_key": routing_key, "queue": queue}
    imported = Import()
    broker.call("exchanges.show", vhost=vhost, name="")  # from here on, the broker has answered
    try:
        size = 0 if file == _STANDARD else Path(file).stat().st_size
        with StatusLine(not broker.as_json) as line, _read(file) as source:
            _publish_all(broker, imported, source, target, size, line)
    except OSError as error:
        imported.stop(f"cannot read {file}: {error.strerror}")
    except KeyboardInterrupt:
        click.echo(imported.summary(), err=True)
        raise
    _show_imported(broker, imported)


@contextmanager
def _read(name: str) -> Iterator[BinaryIO]:
    if name == _STANDARD:
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


def _publish_all(broker: Remote, imported: Import, source: BinaryIO, target: Item, size: int, line: StatusLine) -> None:
    """Publish the messages of a file, until a failure. `size` is that of the file, 0 if it is unknown."""
    read = 0
    while data := source.read(_READ_SIZE):
        read += len(data)
        if not _publish(broker, imported, imported.feed(data), target):
            return
        share = f" ({100 * read // size} %)" if size else ""
        line.show(f"imported {imported.imported:,} messages{share}")
    _publish(broker, imported, imported.finish(), target)


def _publish(broker: Remote, imported: Import, batches: Iterable[Batch], target: Item) -> bool:
    """Publish batches, and return whether to continue. Raises `Failed` if the first batch is refused."""
    for batch in batches:
        try:
            result = broker.call("messages.import", messages=batch.messages, **target) if batch.messages else NOTHING
        except Refused as error:
            if error.condition == _UNCERTAIN:
                imported.lose(batch, str(error))
            elif imported.lines:
                imported.stop(str(error))
            else:
                raise
            return False
        except Failed as error:
            imported.lose(batch, str(error))
            return False
        imported.answered(batch, result)
        if imported.stopped:
            return False
    return True


def _show_imported(broker: Remote, imported: Import) -> None:
    """Print the result. Raises `Failed` if a message was not imported."""
    report = imported.report()
    if broker.as_json:
        show_json(report)
    else:
        click.echo(imported.summary())
        for problem in report["problems"]:
            click.echo(f"line {problem['line']}: {problem['reason']}", err=True)
    if imported.stopped:
        raise Failed(f"the rest was not published: {imported.stopped}", INCOMPLETE)
    left = imported.unroutable + imported.refused
    if left:
        raise Failed(f"{left:,} messages were not imported", INCOMPLETE)
