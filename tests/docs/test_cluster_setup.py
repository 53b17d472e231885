"""The commands of docs/cluster.md set up PostgreSQL with standbys. Only the values of their variables differ."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.sharded import config
from tests.cluster.test_nodes import Node
from tests.docs.pages import DOCS, section_blocks
from tests.support.broker import ROOT, free_port
from tests.support.polling import wait_until
from tests.support.postgres import PROGRAMS, require_postgres

PAGE = DOCS / "cluster.md"
# Each sets its own values; the others are the same.
NAMES = ("db1", "db2", "db3")


class Machine:
    """A machine that follows the page: its variables, and a directory in the place of `/etc/postgresql`."""

    def __init__(self, directory: Path, name: str, variables: dict[str, str]) -> None:
        self.variables = variables
        self.clusters = directory / f"{name}-clusters"
        self.clusters.mkdir()
        shutil.chown(self.clusters, "postgres")
        self.environment = os.environ | {"PG_CLUSTER_CONF_ROOT": str(self.clusters)}

    def script(self, commands: str) -> list[str]:
        settings = "".join(f"{name}='{value}'\n" for name, value in self.variables.items())
        return ["bash", "-euc", settings + commands]

    def run(self, commands: str) -> str:
        """Run commands, and return their output."""
        found = subprocess.run(
            self.script(commands), env=self.environment, capture_output=True, text=True, check=False, cwd="/"
        )
        assert not found.returncode, f"{commands}\n{found.stdout}{found.stderr}"
        return found.stdout

    def follow(self, heading: str) -> str:
        """Run the commands of a section. Returns their output."""
        return "".join(self.run(block) for block in section_blocks(PAGE, heading, "sh"))

    def query(self, statement: str) -> str:
        """Return the result of a statement."""
        return self.run(f'su postgres -c "psql --port $PORT --tuples-only --no-align --command \\"{statement}\\""').strip()

    def end(self, how: str) -> None:
        self.run(f"pg_ctlcluster $VERSION $CLUSTER stop -m {how}")

    def remove(self) -> None:
        subprocess.run(
            self.script("pg_dropcluster --stop $VERSION $CLUSTER"), env=self.environment, capture_output=True, check=False
        )


def variables_of_the_page() -> dict[str, str]:
    """Return the variables of the page with their values."""
    [_, block] = section_blocks(PAGE, "Set up the servers", "sh")
    return dict(re.findall(r"(?:^| )([A-Z_]+)=(\S+)", block, re.MULTILINE))


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    require_postgres()
    if os.getuid() or shutil.which("pg_createcluster") is None:
        pytest.skip("needs root, and Debian's pg_createcluster")
    # Not in a directory of pytest, which the user of the servers may not enter.
    directory = Path(tempfile.mkdtemp(prefix="leveret-pg-"))
    directory.chmod(0o711)
    ports = [free_port() for _ in NAMES]
    given = variables_of_the_page()
    found = []
    for name, port in zip(NAMES, ports, strict=True):
        (directory / name).mkdir()
        shutil.chown(directory / name, "postgres")
        own = {
            "VERSION": PROGRAMS.parts[-2],
            "NAME": name,
            "HOSTS": ",".join("127.0.0.1" for _ in NAMES),
            "PORT": str(port),
            "PORTS": ",".join(map(str, ports)),
            "NETWORK": "127.0.0.0/8",
            "DATA": str(directory / name / "data"),
            "CONFIG": str(directory / "node"),
        }
        assert own.keys() < given.keys()
        found.append(Machine(directory, name, given | own))
    yield found
    for machine in found:
        machine.remove()
    shutil.rmtree(directory)


def test_the_first_commands_install_postgresql() -> None:
    """They change the machine, so that the other test cannot run them. CI installs the same package."""
    installation, _ = section_blocks(PAGE, "Set up the servers", "sh")
    assert installation.startswith("apt-get install --yes postgresql\n")
    assert "wanted+=(postgresql)" in (ROOT / ".ci" / "run").read_text("utf-8")


@pytest.mark.slow
def test_the_commands_of_the_page(machines: list[Machine], tmp_path: Path) -> None:
    first, second, third = machines
    first.follow("Create a server")
    first.follow("Create the database")
    second.follow("Create a server")
    second.follow("Create a standby")
    first.follow("Make it synchronous")
    writing, serving, checking = divided(section_blocks(PAGE, "Start a node", "sh"))
    first.run(writing)
    # A broker of the tests: on free ports, with its own data directory.
    node = Node(tmp_path / "one", "", shards=4)
    assert serving == "leveret serve --config $CONFIG/leveret.toml"
    settings = Path(first.variables["CONFIG"]) / "leveret.toml"
    assert (settings.parent / "database").stat().st_mode & 0o777 == 0o600
    node.config = settings.read_text("utf-8") + config()
    for name in ("STORAGE__ENGINE", "STORAGE__DSN", "CLUSTER__UNREPLICATED", "CLUSTER__NAME"):
        node.environment.pop(f"LEVERET_{name}", None)
    with node.start():
        node.publish("/", b"one")
        leveret = f"{sys.executable} -m leveret"
        first.environment |= {"PYTHONPATH": str(ROOT / "src"), "LEVERET_SERVER__DATA_DIR": str(node.data_dir)}
        found = first.run(checking.replace("leveret cluster", f"{leveret} cluster"))
        assert re.search(r"ok +replication +synchronous standby db2\n", found), found
        first.end("immediate")
        second.follow("Promote a standby")
        # With one standby, nothing is confirmed before there is another one.
        wait_until(lambda: second.query("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "t")
        third.follow("Create a server")
        third.follow("Create a standby")
        node.publish("/", b"two")
        # With two, the other one follows.
        first.run("rm $DATA/postmaster.pid 2>/dev/null || true")
        first.follow("Create a standby")
        wait_until(lambda: second.query("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'") == "2")
        second.end("immediate")
        third.follow("Promote a standby")
        node.publish("/", b"three")
        assert node.bodies("/") == [b"one", b"two", b"three"]
        assert third.query("SELECT application_name FROM pg_stat_replication") == "db1"


def divided(blocks: list[str]) -> tuple[str, str, str]:
    """Return the commands that write the configuration, the one that serves, and those that follow."""
    writing, serving = blocks[0].rstrip().rsplit("\n", 1)
    return writing, serving, blocks[1]
