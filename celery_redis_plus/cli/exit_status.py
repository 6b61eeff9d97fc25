"""What the command line's exit status means; docs/command-line.md prints this table."""

from __future__ import annotations

from typing import Final

#: Done, or nothing was wrong.
DONE: Final = 0
#: The broker refused it, what was named does not exist, or `check` found a violation. The reason is on stderr.
FAILED: Final = 1
#: The line cannot be understood: an option, a value, or a confirmation is missing. `check`: it could not run.
USAGE: Final = 2
#: The server cannot be reached, does not answer, or refuses the login.
UNREACHABLE: Final = 3
#: Ended by Ctrl-C. What was done until then is done; the same line again does the rest.
INTERRUPTED: Final = 130
#: The reader of the output has gone, as `| head` has: 128 and the number of SIGPIPE.
BROKEN_PIPE: Final = 141
