"""Mails of alerts, by SMTP.

An address gets one mail for all of its alerts that are raised or cleared within an interval, so that a thousand alerts are
one mail.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid
from pathlib import Path
from typing import Final

import aiosmtplib
import msgspec

from leveret.config import MailConfig, is_address
from leveret.management.http.control import Row
from leveret.management.http.deliveries import Deliveries, printable
from leveret.management.http.outbox import Delivery, Outbox

logger = logging.getLogger("leveret.http")

# Maximum number of alerts that a mail lists. Further ones are counted.
MAX_LISTED: Final = 200
# Maximum number of addresses with alerts that wait. Alerts for further ones are dropped.
MAX_ADDRESSES: Final = 1000
MAX_ATTEMPTS: Final = 8
# Seconds before the second attempt, which double with each further one: about 10 minutes for all of them, because mail
# servers may accept a mail of an unknown sender only after some minutes.
RETRY_DELAY: Final = 5.0
_MAX_RETRY_DELAY: Final = 300.0
# Maximum number of connections to the mail server at a time.
_MAX_CONNECTIONS: Final = 2
_MAX_SUBJECT: Final = 200
# Replies from which on another attempt is in vain.
_PERMANENT: Final = 500
_STATES: Final = {
    "depth": "{value:,.0f} messages; the threshold is {threshold:,.0f}",
    "growth": "grows by {value:,.1f} messages per second; the threshold is {threshold:,.1f}",
    "no_consumers": "{value:,.0f} messages and no consumer",
    "no_acks": "no acknowledgement for {value:,.0f} seconds; the threshold is {threshold:,.0f}",
    "ready_age": "a message ready for {value:,.0f} seconds; the threshold is {threshold:,.0f}",
    "unacked_age": "a message unacked for {value:,.0f} seconds; the threshold is {threshold:,.0f}",
    "memory": "the memory alarm blocks publishers",
    "disk": "the disk alarm blocks publishers",
}


def is_allowed(address: str, allowed: Iterable[str]) -> bool:
    """Return whether an address, or its domain, is among those that the configuration allows."""
    domain = address.rpartition("@")[2]
    return is_address(address) and not {address.lower(), domain.lower()}.isdisjoint(item.lower() for item in allowed)


class _Alert(msgspec.Struct, array_like=True):
    """An alert as the outbox keeps it."""

    action: str
    text: str

    @classmethod
    def of(cls, delivery: Delivery) -> _Alert:
        return msgspec.json.decode(delivery.body, type=cls)


class _Mailbox:
    """The alerts that wait for one address."""

    def __init__(self) -> None:
        self._listed: list[Delivery] = []
        self._counts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._listed)

    @property
    def is_full(self) -> bool:
        """Whether further alerts are counted only."""
        return len(self._listed) >= MAX_LISTED

    def count(self, action: str) -> None:
        """Add an alert that the mail does not list."""
        self._counts[action] += 1

    def add(self, alert: Delivery) -> None:
        """Add an alert that the mail lists."""
        self._counts[_Alert.of(alert).action] += 1
        self._listed.append(alert)

    def take(self) -> tuple[str, str, list[Delivery]]:
        """Return the subject and the text of a mail with all alerts, and those that it lists. They no longer wait."""
        listed, counts = self._listed, self._counts
        self._listed, self._counts = [], Counter()
        alerts = [_Alert.of(alert) for alert in listed]
        if counts.total() == 1:
            [alert] = alerts
            subject = f"alert {alert.action}: {alert.text}"
        else:
            subject = "alerts: " + ", ".join(f"{count} {action}" for action, count in counts.items())
        lines = []
        for action in counts:
            lines += [f"{action.capitalize()}:", *(f"  {alert.text}" for alert in alerts if alert.action == action), ""]
        if counts.total() > len(listed):
            lines.append(f"and {counts.total() - len(listed)} more alerts, which this mail does not list")
        return subject, "\n".join(lines) + "\n", listed


class Mailer:
    """Sends the mails of one broker.

    Args:
        config: The mail server, and the addresses that may get mails.
        node: The name of the node, for the subjects.
        path: The file of alerts that wait; None if they may be lost.
        retry_delay: Seconds before the second attempt.

    Attributes:
        deliveries: What was sent.
    """

    def __init__(self, config: MailConfig, node: str, path: Path | None = None, retry_delay: float = RETRY_DELAY) -> None:
        self._config = config
        self._node = node
        self._outbox = Outbox(path, "alerts to mail")
        self._retry_delay = retry_delay
        self._mailboxes: dict[str, _Mailbox] = {}
        self._new: asyncio.Queue[str] = asyncio.Queue()
        self._connections = asyncio.Semaphore(_MAX_CONNECTIONS)
        self.deliveries = Deliveries(kind="mail", receiver=f"{config.host}:{config.port}")

    async def open(self) -> None:
        """Continue with the alerts that wait since before the start, except those to addresses no longer allowed."""
        for alert in await self._outbox.open():
            mailbox = self._find(alert.receiver) if self._allows(alert.receiver) else None
            if mailbox is None or mailbox.is_full:
                self._outbox.remove(alert)
            else:
                mailbox.add(alert)

    def put(self, addresses: Iterable[str], action: str, alert: Row) -> None:
        """Send an alert in the background to those addresses that are allowed."""
        content = msgspec.json.encode(_Alert(action, _describe(alert)))
        for address in addresses:
            if not self._allows(address):
                logger.warning(
                    "a rule of alerts has a mail address that the setting management.mail.recipients does not allow"
                )
                continue
            mailbox = self._find(address)
            if mailbox is None:
                self.deliveries.dropped += 1
                self.deliveries.note_error(f"alerts wait for {MAX_ADDRESSES} addresses, the maximum; dropped an alert")
            elif mailbox.is_full:
                mailbox.count(action)
            else:
                mailbox.add(self._outbox.add(address, content))

    async def run(self) -> None:
        """Send mails until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._outbox.run())
            while True:
                group.create_task(self._serve(await self._new.get()))

    async def close(self) -> None:
        """Keep the alerts that wait, after `run` has ended."""
        await self._outbox.close()

    def _allows(self, address: str) -> bool:
        return bool(self._config.host) and is_allowed(address, self._config.recipients)

    def _find(self, address: str) -> _Mailbox | None:
        """Return the alerts that wait for an address; None if it would be one address too many."""
        mailbox = self._mailboxes.get(address)
        if mailbox is None and len(self._mailboxes) < MAX_ADDRESSES:
            mailbox = self._mailboxes[address] = _Mailbox()
            self._new.put_nowait(address)
            self.deliveries.pending = len(self._mailboxes)
        return mailbox

    async def _serve(self, address: str) -> None:
        """Send the mails of an address, at most one per interval, until no alerts wait."""
        mailbox = self._mailboxes[address]
        while mailbox:
            subject, text, listed = mailbox.take()
            await self._deliver(self._compose(address, subject, text))
            for alert in listed:
                self._outbox.remove(alert)
            await asyncio.sleep(self._config.interval)
        del self._mailboxes[address]
        self.deliveries.pending = len(self._mailboxes)

    def _compose(self, address: str, subject: str, text: str) -> EmailMessage:
        mail = EmailMessage(SMTP)
        mail["From"] = self._config.sender
        mail["To"] = address
        mail["Subject"] = printable(f"[{self._node}] {subject}")[:_MAX_SUBJECT]
        mail["Date"] = format_datetime(datetime.now(UTC))
        mail["Message-ID"] = make_msgid(domain=self._config.sender.rpartition("@")[2])
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(text, cte="quoted-printable")
        return mail

    async def _deliver(self, mail: EmailMessage) -> None:
        delay = self._retry_delay
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                async with self._connections, asyncio.timeout(self._config.timeout):
                    await self._send(mail)
            except (OSError, ValueError, aiosmtplib.SMTPException) as error:
                self.deliveries.note_error(self._reason(error))
                if _is_permanent(error):
                    break
            else:
                self.deliveries.delivered += 1
                return
            if attempt < MAX_ATTEMPTS:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_RETRY_DELAY)
        self.deliveries.failed += 1
        logger.warning(
            "cannot send a mail of alerts by %s: %s; expected the server of management.mail to accept it",
            self.deliveries.receiver,
            self.deliveries.error,
        )

    def _reason(self, error: Exception) -> str:
        if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
            return ", ".join(f"{refused.recipient}: {refused.code} {refused.message}" for refused in error.recipients)
        if isinstance(error, aiosmtplib.SMTPResponseException):
            return f"{error.code} {error.message}"
        return str(error) or f"no answer within {self._config.timeout:g} seconds (management.mail.timeout)"

    async def _send(self, mail: EmailMessage) -> None:
        config = self._config
        context, password = await asyncio.to_thread(self._load)
        await aiosmtplib.send(
            mail,
            hostname=config.host,
            port=config.port,
            username=config.user or None,
            password=password,
            local_hostname=socket.gethostname(),  # the default asks the resolver, which blocks
            timeout=config.timeout,
            use_tls=config.security == "tls",
            start_tls=config.security == "starttls",
            tls_context=context,
        )

    def _load(self) -> tuple[ssl.SSLContext | None, str | None]:
        """Read the certificates and the password, which may have changed. Raises `OSError` and `ValueError`."""
        config = self._config
        context = None if config.security == "none" else ssl.create_default_context(cafile=config.ca)
        if config.password_file is None:
            return context, None
        lines = Path(config.password_file).read_text("utf-8").splitlines()
        return context, lines[0] if lines else ""


def _describe(alert: Mapping[str, str | float]) -> str:
    """Return an alert on one line, whatever its names contain."""
    subject = f"queue '{alert['queue']}' in vhost '{alert['vhost']}'" if alert["queue"] else "node"
    state = _STATES[str(alert["kind"])].format_map(alert)
    since = datetime.fromtimestamp(int(alert["since"]) // 1000, UTC)
    return printable(f"{subject}: {state} (rule '{alert['rule']}', since {since:%Y-%m-%d %H:%M:%S} UTC)")


def _is_permanent(error: Exception) -> bool:
    """Return whether the server refuses a mail for good."""
    if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
        return all(recipient.code >= _PERMANENT for recipient in error.recipients)
    return isinstance(error, aiosmtplib.SMTPResponseException) and error.code >= _PERMANENT
