"""docs/tls.md: its commands create a certificate, a broker with TLS and a user, and its programs connect to them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks
from tests.docs.terminals import programs
from tests.support.broker import ROOT, LeveretProcess, leveret_only

PAGE = DOCS / "tls.md"
PASSWORD = "secret of shop"


def commands() -> list[str]:
    return [line for block in blocks(PAGE, "sh") for line in block.text.splitlines()]


def run(command: list[str], directory: Path, standard_input: str | None = None) -> str:
    """Return the output of a command. Raises AssertionError if it fails."""
    result = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        timeout=120,
        input=standard_input or "",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's directory, after the commands of the page that need no broker."""
    leveret_only("the page starts one")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls")
    for command in commands():
        if not command.startswith("leveret "):
            run(["sh", "-c", command], path)
    return path


@pytest.fixture(scope="module")
def port(directory: Path) -> Iterator[str]:
    """The TLS port of a broker that the page configures, after the page's commands have added the user."""
    [config] = [block.text for block in blocks(PAGE, "toml")]
    assert "leveret serve --config leveret.toml --data-dir data" in commands()
    broker = LeveretProcess(directory, config=config)
    broker.extra = ["--set", "tls.port=0"]
    try:
        broker.start()
        for command in commands():
            if command.startswith(("leveret users", "leveret permissions")):
                words = shlex.split(command)
                # There is no terminal to ask for the password.
                words += ["--password-file", "-"] if "users" in words else []
                run([sys.executable, "-P", "-m", *words], directory, PASSWORD)
        yield str(broker.port)
    finally:
        broker.stop()


def test_the_password_of_the_administrator_is_private(directory: Path) -> None:
    assert (directory / "admin.password").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("name", "printed"), [("tls_hello.py", "12 carrots\n"), ("tls_pika.py", "3 leeks\n")])
def test_programs_connect(name: str, printed: str, directory: Path, port: str) -> None:
    text = programs(PAGE)[name]
    assert "@localhost" in text
    path = directory / name
    path.write_text(text.replace("@localhost", f"@localhost:{port}"), "utf-8")
    assert run([sys.executable, name], directory) == printed


def test_an_untrusted_certificate_is_refused(directory: Path, port: str) -> None:
    text = programs(PAGE)["tls_hello.py"].replace("@localhost", f"@localhost:{port}").replace(', cafile="server.pem"', "")
    (directory / "untrusted.py").write_text(text, "utf-8")
    with pytest.raises(AssertionError, match="TlsFailed"):
        run([sys.executable, "untrusted.py"], directory)


def test_other_names_are_refused(directory: Path, port: str) -> None:
    text = programs(PAGE)["tls_hello.py"].replace("@localhost", f"@localhost:{port}").replace("shop-orders", "orders")
    (directory / "refused.py").write_text(text, "utf-8")
    with pytest.raises(AssertionError, match="403"):
        run([sys.executable, "refused.py"], directory)
