"""Spark finds format("rocket") here."""
