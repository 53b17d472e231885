"""The async API of the client."""
