"""The judge: holds the record of a run against what the package promises. `docs/testing.md` says how to use it."""
