"""Flows whose tasks write the table's files themselves."""
