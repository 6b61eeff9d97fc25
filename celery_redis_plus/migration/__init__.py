"""Moves messages between kombu's own Redis transport and this one, in both directions."""
