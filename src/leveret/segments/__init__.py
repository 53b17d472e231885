"""Sealed segments of streams: Parquet files with the table schema of messages, and what reads and writes them."""
