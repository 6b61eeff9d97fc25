"""Values that users give (arguments, ETAs, expiries, priorities, deduplication ids), checked without a server."""
