"""What crosses the borders between client, engine and media worker: plain data, no torch."""
