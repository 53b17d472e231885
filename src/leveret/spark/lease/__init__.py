"""Reads classic and quorum queues exactly once, with leases."""
