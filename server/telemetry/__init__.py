"""What a server reports: metrics, the request log, traces, and a warning about a head with low acceptance."""
