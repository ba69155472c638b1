"""State stores: where responses, files, batches and other documents of the server are kept."""
