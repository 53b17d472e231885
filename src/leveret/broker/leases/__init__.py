"""Leases: numbered batches of entries for an external reader, which can be read repeatedly until they are committed.

A lease batch is a list of positions in the log. Its entries have left the backlog, like unacked ones, but stay in the
log. One metadata record has their sequence numbers, so that a restart returns them to the lease. A commit settles the
whole batch. `Leases` is the interface of the package.
"""
