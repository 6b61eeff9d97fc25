"""The web page: what an operator sees and does on the command line, in a browser; needs the extra `web`."""
