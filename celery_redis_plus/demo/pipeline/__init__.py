"""The demo of the data pipeline: 20,000 tasks, their events in Parquet, and a report that is held against a ledger."""
