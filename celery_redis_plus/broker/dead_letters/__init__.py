"""Dead letters: why a message died, where it goes, and how it comes back."""
