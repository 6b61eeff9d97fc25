"""One module a sub-command; each defines `command` (see `cli/main.py`)."""
