"""The OpenAI-compatible microservice."""
