"""Classic queues, and quorum queues, which differ only in their defaults."""
