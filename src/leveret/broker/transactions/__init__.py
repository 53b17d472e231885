"""Work that takes effect together: transactions, branches of distributed transactions, and sink transactions."""
