"""Recipes that write into lakes, killed at each of their steps."""
