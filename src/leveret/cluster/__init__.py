"""Several processes as one broker: a front that accepts the clients, and shards that have the vhosts."""
