"""What stays on the device between steps: KV pools, row tables, the FutureMap; and the transfers to and from it."""
