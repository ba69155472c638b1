"""Media of prompts: fetch, decode and prepare."""
