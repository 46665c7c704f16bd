"""What a load test sends: conversations by workload, and the client that times them."""
