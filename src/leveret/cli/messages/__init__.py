"""`leveret publish`, `leveret consume` and `leveret get`."""
