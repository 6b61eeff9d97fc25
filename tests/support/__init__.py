"""What tests share: servers, workers and waiting."""
