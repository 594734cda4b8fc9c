"""The web console: view and manage a cluster in a browser. Entry point: ``serve.serve_console``."""
