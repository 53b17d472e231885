"""The sync API of the client."""
