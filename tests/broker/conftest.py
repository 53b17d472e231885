"""Fixtures of the broker's tests."""

from __future__ import annotations

import pytest

import leveret

# Compiled objects take no weak references, and their methods cannot be replaced.
collect_ignore = (
    ["test_leaks.py", "leases/test_lease_model.py", "queues/test_queue_model.py"] if leveret.build_info().compiled else []
)


@pytest.fixture
def world():  # type: ignore[no-untyped-def]
    """A broker in this process, without sockets, disk or clock."""
    from tests.broker.support import World

    return World()


def pytest_report_header() -> str:
    return f"leveret: {leveret.build_info()}"
