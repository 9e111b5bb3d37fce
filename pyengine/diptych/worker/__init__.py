"""The worker: holds weights and KV cache, runs step plans, gives back sampled ids. All it holds can be rebuilt."""
