"""Parts of `leveret migrate`: what another broker has, what Leveret does not support, and the move of the messages."""
