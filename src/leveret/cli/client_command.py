"""What commands that are clients of a broker share: their options, and how they run and end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from leveret.cli.failed import MISTAKE, NO_BROKER, NOT_ALL, PIPE_CLOSED, REFUSED, SIGNALLED, Failed
from leveret.cli.output import text

if TYPE_CHECKING:
    from leveret.client.aio.connection import Connection
    from leveret.client.aio.opening import Opening
    from leveret.client.errors import Error
    from leveret.client.events import Event

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_URL = "amqp://guest:guest@localhost:5672/"


def url_option(function: Function) -> Function:
    """--url, any number of times."""
    return click.option("--url", "urls", multiple=True, default=(DEFAULT_URL,), envvar="LEVERET_URL", metavar="URL",
                        help=f"The broker; several are tried in turn.  [env LEVERET_URL; default: {DEFAULT_URL}]")(function)


def timeout_option(function: Function) -> Function:
    """--timeout of connecting and of each answer."""
    return click.option("--timeout", type=SECONDS, metavar="SECONDS",
                        help="How long to wait for the broker.  [default: 10 to connect, 30 for an answer]")(function)


def quiet_option(function: Function) -> Function:
    return click.option("--quiet", "-q", is_flag=True, help="Neither progress nor summary.")(function)


# Reply codes of a connection that was closed by nobody (0), or by a server that stops (320) or has failed (541).
_NO_REFUSAL = (0, 320, 541)

SECONDS = click.FloatRange(min=0, min_open=True, max=10**6)


def open_connection(urls: tuple[str, ...], command: str, timeout: float | None = None,
                    on_event: Callable[[Event], object] | None = None, **options: Any) -> Opening[Connection]:
    """A connection that the broker shows under the command's name, where the URL gives none.

    timeout  of connecting, of every call, and of a server that takes no messages; None leaves each as the URL has it
    """
    import leveret
    from leveret.client.url import parse_urls

    if timeout is not None:
        options |= {"timeout": timeout, "connect_timeout": timeout, "blocked_timeout": timeout}
    if not parse_urls(urls)[0].name:
        options["name"] = f"leveret {command}"
    return leveret.connect(urls, on_event=on_event, **options)


def run(command: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run a command to its end, and end the process with its exit code.

    SIGINT and SIGTERM cancel it, so that it gives back what it holds; the second one ends the process at once.
    """
    import asyncio

    from leveret.client import errors

    try:
        code = asyncio.run(_supervise(command))
    except errors.Error as error:
        raise failed(error) from None
    except BrokenPipeError:
        code = PIPE_CLOSED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Failed(f"{where}{error.strerror or error}", NOT_ALL) from None
    if code:
        raise SystemExit(code)


async def _supervise(command: Callable[[], Coroutine[Any, Any, int]]) -> int:
    import asyncio
    import os

    loop = asyncio.get_running_loop()
    task = loop.create_task(command())
    came: list[int] = []

    def on_signal(number: int) -> None:
        if came:
            os._exit(SIGNALLED + number)
        came.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        code = await task
    except asyncio.CancelledError:
        if not came:
            raise
        code = 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return SIGNALLED + came[0] if came else code


def failed(error: Error, addition: str = "") -> Failed:
    """What an error of the client means for whoever has called the command."""
    from leveret.client import errors

    if isinstance(error, (errors.InvalidUrl, errors.InvalidMessage)):
        code = MISTAKE
    elif isinstance(error, errors.PublishFailed):
        code = NOT_ALL
    elif isinstance(error, (errors.AuthenticationFailed, errors.VhostRefused, errors.ConsumerCancelled)):
        code = REFUSED
    else:
        closed = isinstance(error, (errors.ConnectionClosed, errors.ChannelClosed))
        code = REFUSED if closed and error.reply_code not in _NO_REFUSAL else NO_BROKER
    return Failed(text(str(error)) + addition, code)


def event_text(event: Event) -> str:
    """What to tell of an event, "" where it is nothing to be told."""
    from leveret.client import events

    if isinstance(event, events.Disconnected):
        return f"{event.error}; connecting again"
    if isinstance(event, events.Connected) and not event.first:
        return f"connected again, to {event.host}:{event.port}"
    if isinstance(event, events.Blocked):
        return f"the broker takes no messages for now: {event.reason}"
    if isinstance(event, events.Unblocked):
        return "the broker takes messages again"
    if isinstance(event, events.RecoveryFailed):
        return f"not recovered: {event.what}: {event.error}"
    return ""


def say(message: str) -> None:
    """A line on standard error."""
    try:
        sys.stderr.write(f"{text(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        # Nobody listens; that is no reason to stop.
        pass
