"""The Python API: models and answers in this process, without a server."""
