"""Sampling on the device, in batch, as the conventions define it: the same logits give the same token everywhere."""
