"""The web console: a cluster seen and mended in a browser. See ``serve.serve_console``."""
