"""The client's face for asyncio."""
