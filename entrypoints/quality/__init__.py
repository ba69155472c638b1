"""Quality loss of quantization: models compared with their reference on the same text."""
