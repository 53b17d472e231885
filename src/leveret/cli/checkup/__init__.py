"""The checks of `leveret doctor`."""
