"""`leveret completion`: what a real shell offers after it has read the script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from click.testing import CliRunner

from leveret.cli.app import COMMANDS, leveret
from tests.support.broker import ROOT

# From the words of a command line to what is offered for the last one.
Offered: TypeAlias = Callable[..., list[str]]
# Calls the completion of bash as the Tab key does, and prints what it offers.
OFFER = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_leveret_completion leveret
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(tmp_path: Path) -> Offered:
    """Return a function from the words of a command line to what bash offers for the last one."""
    program = tmp_path / "leveret"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m leveret "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "completion"
    path = f"{tmp_path}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)}
    script.write_text(
        subprocess.run([program, "completion", "bash"], env=environment, check=True, capture_output=True, text=True).stdout
    )

    def offer(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", OFFER, "bash", script, *words], env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.split()

    return offer


def test_bash_completes_commands_options_and_values(offered: Offered) -> None:
    assert offered("leveret", "que") == ["queues"]
    assert set(offered("leveret", "")) >= set(COMMANDS)
    assert "add" in offered("leveret", "queues", "")
    assert offered("leveret", "doctor", "--str") == ["--strict"]
    assert offered("leveret", "completion", "z") == ["zsh"]


@pytest.mark.parametrize(
    ("shell", "line"), [("zsh", "#compdef leveret"), ("fish", "complete --no-files --command leveret")]
)
def test_scripts_for_other_shells(shell: str, line: str) -> None:
    result = CliRunner().invoke(leveret, ["completion", shell], prog_name="leveret")
    assert result.exit_code == 0
    assert line in result.output


def test_unknown_shell_is_refused_with_the_known_ones() -> None:
    result = CliRunner().invoke(leveret, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.output
