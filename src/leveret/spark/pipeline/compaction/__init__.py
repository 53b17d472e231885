"""Compaction of tables: small files of finished partitions become few large ones."""
