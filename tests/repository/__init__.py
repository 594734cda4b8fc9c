"""Tests about the repository itself: pages, packages, commands of make."""
