"""Measurements of an engine in this process, or of any OpenAI server."""
