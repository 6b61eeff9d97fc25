"""Stands in for hiredis where this folder is on PYTHONPATH: redis-py then parses replies in Python, in each process of a test."""

raise ModuleNotFoundError("hiredis is kept away by tests/support/without_hiredis", name="hiredis")
