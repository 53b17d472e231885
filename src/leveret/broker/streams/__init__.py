"""Streams: queues whose readers remove nothing, and their sealing."""
