"""The workloads by name."""

from __future__ import annotations

from tests.faults.power.branches import Branches
from tests.faults.power.classic import Classic
from tests.faults.power.definitions import Definitions
from tests.faults.power.links import Links
from tests.faults.power.streams import Streams
from tests.faults.power.uploads import Uploads
from tests.faults.power.workload import Workload

WORKLOADS: dict[str, type[Workload]] = {
    "classic": Classic,
    "streams": Streams,
    "dtx": Branches,
    "links": Links,
    "definitions": Definitions,
    "uploads": Uploads,
}
