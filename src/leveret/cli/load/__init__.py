"""`leveret bench`: the load generator and its results."""
