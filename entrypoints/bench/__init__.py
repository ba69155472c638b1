"""Benchmarks of an engine in this process, or of a server with OpenAI's API."""
