"""Sources: what turns a reference into local files. Paths that exist come first."""
