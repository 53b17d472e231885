"""Publishes DataFrames."""
