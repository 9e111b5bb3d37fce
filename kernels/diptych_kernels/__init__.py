"""Attention and other operations, each with several implementations."""
