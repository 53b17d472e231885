"""What several test suites share: brokers as real processes, raw connections, other brokers to compare with."""
