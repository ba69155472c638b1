"""Load on a server in processes of its own: clients of many kinds, and what they leave behind."""
