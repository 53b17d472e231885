"""Power cuts at any moment of a recorded run: what clients did, written between the operations on files, and how to tell
whether a broker that starts on what is left keeps its promises."""
