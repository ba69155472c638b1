"""The requests and results of the tasks of models: text, vectors, sound and images."""
