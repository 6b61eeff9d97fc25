"""Reads the lifecycle events that the scripts write (`events.py`): positions, ranges, readers, Arrow batches. No Spark here."""
