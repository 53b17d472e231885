"""Sealed segments of streams: Parquet files with one schema for messages, their writers and readers."""
