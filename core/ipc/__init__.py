"""The process boundary of the engine: client, process, loop, messages and output streams."""
