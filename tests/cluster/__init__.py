"""Tests of brokers of several processes."""
