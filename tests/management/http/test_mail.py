"""Mails of alerts: what a real mail server gets, and what it does not."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from leveret.config import MailConfig
from leveret.management.http.alerts import Kind
from leveret.management.http.control import Row
from leveret.management.http.mail import MAX_ADDRESSES, MAX_ATTEMPTS, MAX_LISTED, Mailer
from tests.management.http.brokers import USERS
from tests.management.http.client import HttpBroker, send
from tests.management.http.mail_server import MailServer
from tests.management.http.scrapes import metrics_port
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config, free_port
from tests.support.polling import wait_until

OPS = "ops@example.com"
DEV = "dev@example.com"
HEADERS = {"From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "Content-Type", "MIME-Version"}
HEADERS |= {"Content-Transfer-Encoding"}
INJECTED = "orders\r\nBcc: victim@example.net\r\n\r\nCleared:\r\n\x1b[31m\u202e"


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer() as started:
        yield started


def mailer(server: MailServer, **settings: object) -> Mailer:
    return keeper(server, None, 0.001, **settings)


def keeper(server: MailServer, path: Path | None, retry_delay: float = 0.001, **settings: object) -> Mailer:
    """Return a mailer that keeps alerts in a file."""
    given = {"host": "localhost", "port": server.port, "sender": "leveret@example.org", "recipients": ["Example.com"]}
    defaults = {"security": "none", "interval": 0.01, "timeout": 10.0}
    return Mailer(msgspec.convert({**given, **defaults, **settings}, MailConfig), "rabbit@host", path, retry_delay)


def alert(queue: str = "orders", rule: str = "deep") -> Row:
    measured = {"value": 12003.0, "threshold": 10000.0, "since": 1767225600123}
    return {"rule": rule, "kind": "depth", "vhost": "/", "queue": queue, **measured}


def deliver(mailer: Mailer, is_done: Callable[[], bool]) -> None:
    """Send mails until a condition holds."""

    async def run() -> None:
        await mailer.open()
        task = asyncio.create_task(mailer.run())
        async with asyncio.timeout(60):
            while not is_done():
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        await mailer.close()

    asyncio.run(run())


def text_of(mail: EmailMessage) -> str:
    return str(mail.get_content())


def test_an_alert_is_a_mail(server: MailServer) -> None:
    sent = mailer(server)
    sent.put([OPS], "raised", alert())
    deliver(sent, lambda: sent.deliveries.delivered == 1)
    [mail] = server.received
    assert (mail["From"], mail["To"], mail["Auto-Submitted"]) == ("leveret@example.org", OPS, "auto-generated")
    state = "queue 'orders' in vhost '/': 12,003 messages; the threshold is 10,000"
    text = f"{state} (rule 'deep', since 2026-01-01 00:00:00 UTC)"
    assert mail["Subject"] == f"[rabbit@host] alert raised: {text}"
    assert text_of(mail).split() == f"Raised: {text}".split()
    assert mail["Message-ID"].endswith("@example.org>") and mail["Date"].datetime.timestamp() <= time.time() + 1


@pytest.mark.parametrize("kind", get_args(Kind))
def test_each_kind_of_alert_has_a_text(server: MailServer, kind: str) -> None:
    sent = mailer(server)
    sent.put([OPS], "cleared", alert("") | {"kind": kind})
    deliver(sent, lambda: sent.deliveries.delivered == 1)
    assert "alert cleared: node: " in server.received[0]["Subject"]


def test_alerts_at_the_same_time_are_one_mail(server: MailServer) -> None:
    sent = mailer(server)
    for number in range(1000):
        sent.put([OPS, DEV], "raised", alert(f"queue-{number}"))
    for number in range(3):
        sent.put([OPS], "cleared", alert(f"other-{number}"))
    deliver(sent, lambda: sent.deliveries.delivered == 2)
    assert sent.deliveries.pending <= 2
    mails = {mail["To"]: mail for mail in server.received}
    assert mails[OPS]["Subject"] == "[rabbit@host] alerts: 1000 raised, 3 cleared"
    assert mails[DEV]["Subject"] == "[rabbit@host] alerts: 1000 raised"
    for address, more in ((OPS, 1003 - MAX_LISTED), (DEV, 1000 - MAX_LISTED)):
        text = text_of(mails[address])
        assert text.count("queue 'queue-") == MAX_LISTED
        assert f"and {more} more alerts" in text


def test_an_address_gets_one_mail_per_interval(server: MailServer) -> None:
    sent = mailer(server, interval=3600.0)
    sent.put([OPS], "raised", alert("first"))
    later = [(OPS, "cleared"), (DEV, "raised")]  # the first one waits for the interval

    def is_done() -> bool:
        while sent.deliveries.delivered and later:
            address, action = later.pop(0)
            sent.put([address], action, alert("second"))
        return sent.deliveries.delivered == 2

    deliver(sent, is_done)
    assert server.attempts == [OPS, DEV]
    assert sent.deliveries.pending == 2


def test_alerts_that_come_while_a_mail_waits_are_the_next_mail(server: MailServer) -> None:
    sent = mailer(server)
    server.replies = ["451 try again later"]
    sent.put([OPS], "raised", alert("first"))
    later = ["cleared"]

    def is_done() -> bool:
        if server.attempts and later:
            sent.put([OPS], later.pop(), alert("first"))
        return sent.deliveries.delivered == 2

    deliver(sent, is_done)
    first, second = server.received
    assert "raised" in first["Subject"] and "cleared" not in first["Subject"]
    assert "cleared" in second["Subject"] and "raised" not in second["Subject"]


def test_names_add_neither_headers_nor_lines(server: MailServer) -> None:
    sent = mailer(server)
    sent.put([OPS], "raised", alert(INJECTED, INJECTED))
    deliver(sent, lambda: sent.deliveries.delivered == 1)
    [mail] = server.received
    assert len(mail.keys()) == len(HEADERS) and set(mail.keys()) == HEADERS
    assert server.attempts == [OPS] and mail["Bcc"] is None
    lines = [line for line in text_of(mail).splitlines() if line]
    assert len(lines) == 2 and lines[0] == "Raised:" and "Bcc: victim@example.net" in lines[1]
    assert all(character.isprintable() for character in mail["Subject"] + lines[1])


def test_a_name_of_any_characters_is_sent(server: MailServer) -> None:
    sent = mailer(server)
    sent.put([OPS], "raised", alert("größe-队列-" + "ü" * 200))
    deliver(sent, lambda: sent.deliveries.delivered == 1)
    assert "größe-队列-ü" in server.received[0]["Subject"] and "größe-队列-ü" in text_of(server.received[0])


def test_attempts_end(server: MailServer, caplog: pytest.LogCaptureFixture) -> None:
    server.replies = ["451 greylisted"] * MAX_ATTEMPTS
    sent = mailer(server)
    sent.put([OPS], "raised", alert())
    deliver(sent, lambda: sent.deliveries.failed == 1)
    assert server.attempts == [OPS] * MAX_ATTEMPTS and server.received == []
    assert "greylisted" in sent.deliveries.error and "management.mail" in caplog.text


def test_a_refused_address_is_not_tried_again_and_delays_no_other(server: MailServer) -> None:
    server.refused = {OPS}
    sent = mailer(server)
    sent.put([OPS, DEV], "raised", alert())
    deliver(sent, lambda: (sent.deliveries.failed, sent.deliveries.delivered) == (1, 1))
    assert server.attempts == [DEV] and server.connections == 2
    assert "no such mailbox here" in sent.deliveries.error


def test_a_silent_server_delays_nothing_else() -> None:
    with MailServer(is_silent=True) as silent:
        # Long enough to begin each attempt on a busy machine.
        sent = mailer(silent, timeout=0.3)
        sent.put([OPS], "raised", alert())
        deliver(sent, lambda: sent.deliveries.failed == 1)
        # The server may accept the last connection later.
        wait_until(lambda: silent.connections >= MAX_ATTEMPTS)
        assert silent.connections == MAX_ATTEMPTS
    assert sent.deliveries.error


def test_a_server_that_is_down_is_a_failed_delivery() -> None:
    sent = mailer(MailServer(), port=free_port())
    sent.put([OPS], "raised", alert())
    deliver(sent, lambda: sent.deliveries.failed == 1)
    assert sent.deliveries.error and sent.deliveries.delivered == 0


def test_starttls_with_a_login(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    password = tmp_path / "password"
    password.write_text("secret\nsecond line\n")
    with MailServer(context) as server:
        settings = {"security": "starttls", "user": "leveret", "password_file": str(password)}
        untrusting = mailer(server, **settings)
        untrusting.put([OPS], "raised", alert())
        deliver(untrusting, lambda: untrusting.deliveries.failed == 1)
        assert "certificate" in untrusting.deliveries.error and server.logins == []
        trusting = mailer(server, ca=str(authority.path), **settings)
        trusting.put([OPS], "raised", alert())
        deliver(trusting, lambda: trusting.deliveries.delivered == 1)
        assert server.logins == [(b"leveret", b"secret")]
        password.write_text("wrong\n")
        refused = mailer(server, ca=str(authority.path), **settings)
        refused.put([OPS], "raised", alert())
        deliver(refused, lambda: refused.deliveries.failed == 1)
        assert "535" in refused.deliveries.error
        assert server.logins[1:] == [(b"leveret", b"wrong")] * 2  # once by each mechanism, and not again
        password.unlink()
        missing = mailer(server, ca=str(authority.path), **settings)
        missing.put([OPS], "raised", alert())
        deliver(missing, lambda: missing.deliveries.failed == 1)
        assert str(password) in missing.deliveries.error
    assert len(server.received) == 1


def test_a_server_without_starttls_gets_no_mail(server: MailServer) -> None:
    sent = mailer(server, security="starttls")
    sent.put([OPS], "raised", alert())
    deliver(sent, lambda: sent.deliveries.failed == 1)
    assert server.attempts == []


def test_an_address_that_is_not_allowed_gets_no_mail(server: MailServer, caplog: pytest.LogCaptureFixture) -> None:
    sent = mailer(server)
    others = ["ops@example.net", "ops@sub.example.com", "example.com", "@example.com", ""]
    others += ["x\r\nBcc: y@example.com", "x@example.com\r\n", "<y@example.net>@example.com", "Ops <ops@example.com>"]
    sent.put(others, "raised", alert())
    assert caplog.text.count("management.mail.recipients") == len(others)
    sent.put(["OPS@EXAMPLE.COM"], "raised", alert())
    deliver(sent, lambda: sent.deliveries.delivered == 1)
    assert server.attempts == ["OPS@EXAMPLE.COM"]


def test_the_number_of_addresses_that_wait_is_limited(server: MailServer) -> None:
    sent = mailer(server)
    for number in range(MAX_ADDRESSES + 3):
        sent.put([f"user-{number}@example.com"], "raised", alert())
    assert (sent.deliveries.pending, sent.deliveries.dropped) == (MAX_ADDRESSES, 3)


def test_alerts_that_wait_survive_a_restart(server: MailServer, tmp_path: Path) -> None:
    path = tmp_path / "mails.sqlite"
    server.replies = ["451 later"]
    before = keeper(server, path, 3600, interval=3600.0, recipients=["example.com", "boss@example.org"])
    both = [OPS, "boss@example.org"]

    async def put() -> None:
        await before.open()
        task = asyncio.create_task(before.run())
        before.put(both, "raised", alert("first"))
        while not (before.deliveries.delivered and before.deliveries.error):
            await asyncio.sleep(0.005)
        before.put(both, "cleared", alert("second"))
        task.cancel()
        await asyncio.wait([task])
        await before.close()

    asyncio.run(put())
    accepted = server.received.pop()["To"]
    waiting = next(address for address in both if address != accepted)
    assert (path.stat().st_mode & 0o777) == 0o600
    after = keeper(server, path, recipients=["example.com", "boss@example.org"])
    deliver(after, lambda: after.deliveries.delivered == 2)
    mails = {mail["To"]: mail for mail in server.received}
    assert mails[waiting]["Subject"] == "[rabbit@host] alerts: 1 raised, 1 cleared"
    assert "queue 'first'" in text_of(mails[waiting]) and "queue 'second'" in text_of(mails[waiting])
    assert "alert cleared: queue 'second'" in mails[accepted]["Subject"]
    again = keeper(server, path)
    again.put([OPS], "raised", alert("third"))
    deliver(again, lambda: again.deliveries.delivered == 1)
    assert len(server.received) == 3 and "third" in server.received[2]["Subject"]


def test_alerts_to_an_address_that_is_no_longer_allowed_are_forgotten(server: MailServer, tmp_path: Path) -> None:
    path = tmp_path / "mails.sqlite"
    before = keeper(server, path)

    async def put() -> None:
        await before.open()
        before.put([OPS], "raised", alert())
        await before.close()

    asyncio.run(put())
    other = keeper(server, path, recipients=["example.org"])
    deliver(other, lambda: other.deliveries.pending == 0)
    after = keeper(server, path)
    deliver(after, lambda: after.deliveries.pending == 0)
    assert server.attempts == []


def test_a_mail_that_waits_lists_no_more_alerts_after_a_restart(server: MailServer, tmp_path: Path) -> None:
    path = tmp_path / "mails.sqlite"
    before = keeper(server, path)

    async def put() -> None:
        await before.open()
        for number in range(MAX_LISTED + 5):
            before.put([OPS], "raised", alert(f"queue-{number}"))
        await before.close()

    asyncio.run(put())
    after = keeper(server, path)
    deliver(after, lambda: after.deliveries.delivered == 1)
    [mail] = server.received
    assert f"alerts: {MAX_LISTED} raised" in mail["Subject"] and text_of(mail).count("queue 'queue-") == MAX_LISTED


def test_a_rule_with_mail_addresses(tmp_path: Path) -> None:
    with MailServer() as server:
        mail = f'[management.mail]\nhost = "127.0.0.1"\nport = {server.port}\nsecurity = "none"\ninterval = 0\n'
        mail += 'sender = "leveret@example.org"\nrecipients = ["example.com", "boss@example.org"]\n'
        config = f"{basic_config()}{USERS}[management]\nport = 0\n{mail}"
        process = LeveretProcess(tmp_path, config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"})
        with process.start():
            api = HttpBroker(process)
            assert api.get("/leveret/alert-addresses", "maker") == ["example.com", "boss@example.org"]
            for path in ("alert-addresses", "alert-deliveries"):
                assert api("GET", f"/leveret/{path}", user="monitor").status == 401
            rule = {"kind": "depth", "vhost": "/", "pattern": "^mailed"}
            for address in ("ops@example.net", "Ops <ops@example.com>", "ops@example.com\r\nBcc: x@example.net", "ops"):
                refused = api("PUT", "/leveret/alert-rules/mail", rule | {"mail": [address]})
                assert refused.status == 400 and "management.mail.recipients" in refused.json["reason"], address
            assert api("PUT", "/leveret/alert-rules/mail", rule | {"mail": [OPS] * 11}).status == 400
            # Administrators can set the parameter of a rule without the rule's checks.
            value = {"value": rule | {"mail": ["ops@example.net", "x\r\nRCPT TO:<x@example.net>\r\n@example.com"]}}
            assert api("PUT", "/global-parameters/alert.bypass", value).status == 201
            given = rule | {"mail": [OPS, "boss@example.org"]}
            assert api("PUT", "/leveret/alert-rules/mail", given, user="maker").status == 201
            [shown] = [row for row in api.get("/leveret/alert-rules", "monitor") if row["name"] == "mail"]
            assert shown["mail"] == []
            name = "mailed%0D%0ABcc:%20x@example.net"
            assert api("PUT", f"/queues/%2F/{name}", {"durable": True}).status == 201
            message = {"payload": "x", "payload_encoding": "string", "properties": {}}
            message["routing_key"] = "mailed\r\nBcc: x@example.net"
            api("POST", "/exchanges/%2F/amq.default/publish", message)
            wait_until(lambda: len(server.received) == 2, "the mails")
            server.refused = {OPS}
            api("DELETE", f"/queues/%2F/{name}")
            wait_until(lambda: api.get("/leveret/alert-deliveries", "maker")[0]["failed"] == 1, "the refusal")
            wait_until(lambda: api.get("/leveret/alert-deliveries", "maker")[0]["delivered"] == 3, "the other mail")
            [found] = api.get("/leveret/alert-deliveries", "maker")
            assert (found["kind"], found["receiver"]) == ("mail", f"127.0.0.1:{server.port}")
            assert "no such mailbox here" in found["error"] and found["error_at"] > 0
            metrics = send(metrics_port(process), "GET", "/metrics").content.decode()
            assert 'leveret_alert_deliveries_total{kind="mail",result="delivered"} 3.0' in metrics
            assert 'leveret_alert_deliveries_total{kind="mail",result="failed"} 1.0' in metrics
            process.check_log()
    assert {mail["To"] for mail in server.received} == {OPS, "boss@example.org"}
    assert set(server.attempts) == {OPS, "boss@example.org"}
    assert all(mail["Bcc"] is None for mail in server.received)
