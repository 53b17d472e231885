"""Methods of 0-9 except those on the hot path: one module for each class, and the table that dispatches them."""
