"""The plugin manager: discovery, validation, isolation and conflict resolution."""
