"""Several whole brokers as one: `shards=N` spreads queues over them by their names. No class below this room knows of it."""
