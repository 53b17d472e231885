"""`python -m leveret` is the command `leveret`."""

from __future__ import annotations

from leveret.cli import main

main()
