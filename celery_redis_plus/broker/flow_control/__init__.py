"""Flow control: limits, throttling, and publishers that wait for capacity."""
