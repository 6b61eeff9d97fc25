"""Publishing: one script call a message, idempotent over retries, and tracked where wanted."""
