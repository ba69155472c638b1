"""Who may do what: API keys, callers and their limits."""
