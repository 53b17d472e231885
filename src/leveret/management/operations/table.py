"""All operations by name."""

from __future__ import annotations

from typing import Final

from leveret.management.operations import (
    audit,
    batches,
    bindings,
    branches,
    browsing,
    bulk,
    connections,
    dead_letters,
    definitions,
    exchanges,
    exporting,
    importing,
    leases,
    limits,
    links,
    log,
    messages,
    nodes,
    parameters,
    payloads,
    permissions,
    policies,
    queues,
    relocating,
    roles,
    segments,
    shards,
    sink_transactions,
    statistics,
    status,
    streams,
    tails,
    traces,
    uploads,
    users,
    vhosts,
)
from leveret.management.operations.operation import Operations, VhostOperations

# Operations on the broker as a whole, whose requests name a vhost.
OPERATIONS: Final[Operations] = {
    **status.OPERATIONS,
    **shards.OPERATIONS,
    **nodes.OPERATIONS,
    **statistics.OPERATIONS,
    **queues.OPERATIONS,
    **messages.OPERATIONS,
    **browsing.OPERATIONS,
    **dead_letters.OPERATIONS,
    **relocating.OPERATIONS,
    **payloads.OPERATIONS,
    **exporting.OPERATIONS,
    **importing.OPERATIONS,
    **tails.OPERATIONS,
    **streams.OPERATIONS,
    **segments.OPERATIONS,
    **leases.OPERATIONS,
    **sink_transactions.OPERATIONS,
    **branches.OPERATIONS,
    **uploads.OPERATIONS,
    **exchanges.OPERATIONS,
    **bindings.OPERATIONS,
    **connections.OPERATIONS,
    **links.OPERATIONS,
    **users.OPERATIONS,
    **vhosts.OPERATIONS,
    **permissions.OPERATIONS,
    **roles.OPERATIONS,
    **policies.OPERATIONS,
    **parameters.OPERATIONS,
    **limits.OPERATIONS,
    **batches.OPERATIONS,
    **bulk.OPERATIONS,
    **traces.OPERATIONS,
    **audit.OPERATIONS,
    **log.OPERATIONS,
}
# Client definitions of exchanges, queues and bindings, inside the principal's vhost.
DEFINITIONS: Final[VhostOperations] = definitions.DEFINITIONS
# Operations inside the principal's vhost that clients request over `leveret.control`.
VHOST_OPERATIONS: Final[VhostOperations] = {
    **queues.VHOST_OPERATIONS,
    **leases.VHOST_OPERATIONS,
    **streams.VHOST_OPERATIONS,
    **sink_transactions.VHOST_OPERATIONS,
}
