"""The models and adapters of a server, and how they are loaded and unloaded."""
