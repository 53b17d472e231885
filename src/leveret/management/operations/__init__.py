"""Management operations, independent of the caller and the transport."""
