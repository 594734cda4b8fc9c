"""The version of the package. Imports nothing, so that every module can name it."""

__version__ = "0.1.0"
