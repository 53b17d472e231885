"""A mail server for tests, in a thread of its own."""

from __future__ import annotations

import asyncio
import email
import email.policy
import ssl
import threading
from email.message import EmailMessage
from types import TracebackType
from typing import Self

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class MailServer:
    """Keeps the mails it gets.

    Args:
        tls: The certificate of the server, for STARTTLS. A server with TLS requires a login.
        is_silent: Whether it accepts connections but never answers.

    Attributes:
        replies: The next replies to mails, such as `451 later`; without one it accepts them.
        refused: The addresses that it refuses.
        attempts: The recipients of all mails, including refused ones.
        received: The mails that it accepted.
        logins: The names and passwords of clients.
        connections: The number of connections.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, is_silent: bool = False) -> None:
        self._tls = tls
        self._is_silent = is_silent
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.replies: list[str] = []
        self.refused: set[str] = set()
        self.attempts: list[str] = []
        self.received: list[EmailMessage] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        server = await self._loop.create_server(self._connected, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _connected(self) -> asyncio.BaseProtocol:
        self.connections += 1
        if self._is_silent:
            return asyncio.Protocol()
        if self._tls is None:
            return SMTP(self, loop=self._loop)
        return SMTP(
            self,
            loop=self._loop,
            tls_context=self._tls,
            require_starttls=True,
            auth_required=True,
            authenticator=self._authenticate,
        )

    def _authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, login: LoginPassword
    ) -> AuthResult:
        self.logins.append((login.login, login.password))
        return AuthResult(success=login.password == b"secret", handled=False)

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return "550 no such mailbox\x07here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.attempts += envelope.rcpt_tos
        if self.replies:
            return self.replies.pop(0)
        content = envelope.content
        assert isinstance(content, bytes)
        mail = email.message_from_bytes(content, policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        self.received.append(mail)
        return "250 OK"
