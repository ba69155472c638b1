"""`ostro serve --workers N`: several processes that serve HTTP in front of one engine."""
