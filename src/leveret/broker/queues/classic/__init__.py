"""Classic queues, and quorum queues, which are a variant of them."""
