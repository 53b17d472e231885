"""Content classes of 0-9 other than basic: file, stream and message."""
