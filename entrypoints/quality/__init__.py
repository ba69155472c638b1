"""What quantization costs: models beside their reference, on the same windows of a text."""
