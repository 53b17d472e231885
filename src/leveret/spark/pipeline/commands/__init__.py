"""Jobs that a command runs once: replay, dead letters, redrive."""
