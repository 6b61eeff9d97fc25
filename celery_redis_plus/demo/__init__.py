"""A server to try things on, and the demonstration that the README's first command starts."""
