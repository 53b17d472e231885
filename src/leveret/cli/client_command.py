"""Shared options, execution and error handling of the commands that connect to a broker as clients."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from leveret.cli.failed import INCOMPLETE, NO_BROKER, PIPE_CLOSED, REFUSED, SIGNALLED, USAGE_ERROR, Failed
from leveret.cli.output import text

if TYPE_CHECKING:
    from leveret.client._async.connection import Amqp10Connection, Connection
    from leveret.client._async.opening import Opening
    from leveret.client.errors import Error
    from leveret.client.events import Event

Function = TypeVar("Function", bound=Callable[..., None])

DEFAULT_URL = "amqp://guest:guest@localhost:5672/"


def url_option(function: Function) -> Function:
    """Add --url, which is repeatable."""
    return click.option(
        "--url",
        "urls",
        multiple=True,
        default=(DEFAULT_URL,),
        envvar="LEVERET_URL",
        metavar="URL",
        help=f"Broker; repeatable, tried in order.  [env LEVERET_URL; default: {DEFAULT_URL}]",
    )(function)


def timeout_option(function: Function) -> Function:
    """Add --timeout, which limits connecting and each reply."""
    return click.option(
        "--timeout",
        type=SECONDS,
        metavar="SECONDS",
        help="Seconds to wait for the broker.  [default: 10 to connect, 30 for a reply]",
    )(function)


def quiet_option(function: Function) -> Function:
    """Add --quiet."""
    return click.option("--quiet", "-q", is_flag=True, help="Print no progress and no summary.")(function)


# Reply codes of an unavailable broker: connection lost (0), shutting down (320), internal error (541).
_UNAVAILABLE_CODES = (0, 320, 541)

SECONDS = click.FloatRange(min=0, min_open=True, max=10**6)


def open_connection(
    urls: tuple[str, ...],
    command: str,
    timeout: float | None = None,
    on_event: Callable[[Event], object] | None = None,
    **options: Any,
) -> Opening[Connection | Amqp10Connection]:
    """Open a connection with the protocol that the URL selects.

    Args:
        urls: The brokers, tried in order.
        command: The name of the command, which names the connection unless the URL does.
        timeout: The timeout for connecting, for each call and for blocked publishes. Default: those of the URL.
        on_event: Called with connection events.
        **options: Other options of `leveret.connect`.
    """
    import leveret
    from leveret.client.url import parse_urls

    if timeout is not None:
        options |= {"timeout": timeout, "connect_timeout": timeout, "blocked_timeout": timeout}
    if not parse_urls(urls)[0].name:
        options["name"] = f"leveret {command}"
    return leveret.connect(urls, protocol="auto", on_event=on_event, **options)


def run(command: Callable[[], Coroutine[None, None, int]]) -> None:
    """Run a command, and exit with its exit code.

    SIGINT and SIGTERM cancel the command, which requeues its unacked messages. A second signal exits immediately.
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
        prefix = f"{error.filename}: " if error.filename else ""
        raise Failed(f"{prefix}{error.strerror or error}", INCOMPLETE) from None
    if code:
        raise SystemExit(code)


async def _supervise(command: Callable[[], Coroutine[None, None, int]]) -> int:
    import asyncio
    import os

    loop = asyncio.get_running_loop()
    task = loop.create_task(command())
    received: list[int] = []

    def on_signal(number: int) -> None:
        if received:
            os._exit(SIGNALLED + number)
        received.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        code = await task
    except asyncio.CancelledError:
        if not received:
            raise
        code = 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return SIGNALLED + received[0] if received else code


def failed(error: Error, addition: str = "") -> Failed:
    """Return the `Failed` for a client error."""
    from leveret.client import errors

    if isinstance(error, (errors.InvalidUrl, errors.InvalidMessage)):
        code = USAGE_ERROR
    elif isinstance(error, errors.PublishFailed):
        code = INCOMPLETE
    elif isinstance(error, (errors.AuthenticationFailed, errors.VhostRefused, errors.ConsumerCancelled)):
        code = REFUSED
    else:
        closed = isinstance(error, (errors.ConnectionClosed, errors.ChannelClosed))
        is_refusal = closed and error.reply_code not in _UNAVAILABLE_CODES
        is_refusal |= isinstance(error, errors.ChannelClosed) and bool(error.condition)  # a link or session of AMQP 1.0
        code = REFUSED if is_refusal else NO_BROKER
    return Failed(text(str(error)) + addition, code)


def event_text(event: Event) -> str:
    """Return the text to print for an event, or "" if it is not printed."""
    from leveret.client import events

    if isinstance(event, events.Disconnected):
        return f"{event.error}; reconnecting"
    if isinstance(event, events.Connected) and not event.first:
        return f"reconnected to {event.host}:{event.port}"
    if isinstance(event, events.Blocked):
        return f"the broker blocked publishers: {event.reason}"
    if isinstance(event, events.Unblocked):
        return "the broker unblocked publishers"
    if isinstance(event, events.RecoveryFailed):
        return f"cannot recover {event.what}: {event.error}"
    return ""


def say(message: str) -> None:
    """Print a line on standard error."""
    try:
        sys.stderr.write(f"{text(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # Continue if standard error is closed.
