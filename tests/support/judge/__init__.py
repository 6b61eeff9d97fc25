"""The judge: holds the record of a run against what the package promises. `docs/design/own-tests.md` says how to use it."""
