"""Around the server: its log, its command line, its machine, and its own answer."""
