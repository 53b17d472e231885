"""Shared by several test suites: brokers as real processes, raw connections, other brokers for comparison."""
