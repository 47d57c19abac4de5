"""Redoma runs code and commands that nobody has reviewed, safely."""
