"""Outputs of flows: tables and exchanges."""
