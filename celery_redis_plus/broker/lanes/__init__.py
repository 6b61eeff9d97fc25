"""What concerns queues of several lanes: where they are, and moves of dead messages between them."""
