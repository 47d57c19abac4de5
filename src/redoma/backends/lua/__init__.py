"""Lua scripts: the interpreter in a cell, and the channel through which a script requests processes."""
