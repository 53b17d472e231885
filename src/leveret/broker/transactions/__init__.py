"""Atomic work: transactions, branches of distributed transactions, and sink transactions."""
