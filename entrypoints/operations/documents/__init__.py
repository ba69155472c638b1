"""What a server stores for its callers, files, uploads and batches, and the jobs that it runs."""
