"""One module a sub-command; each defines `COMMAND` (see `cli/main.py`)."""
