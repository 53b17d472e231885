"""Shards: the processes of one broker, each with some of its vhosts, and the front that accepts their clients."""
