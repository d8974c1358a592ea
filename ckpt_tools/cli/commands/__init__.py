"""One module per command; its file name is the command."""
