"""One module a sub-command; each defines `COMMAND` (see `cli/command.py`)."""
