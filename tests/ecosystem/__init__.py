"""Tests with programs of others that users have beside this package; `tox -e ecosystem`."""
