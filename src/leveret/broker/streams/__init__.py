"""Streams: queues that readers do not empty, and their sealing."""
