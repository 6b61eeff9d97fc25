"""One module a sub-command; each defines `COMMAND` (see `admin/command.py`)."""
