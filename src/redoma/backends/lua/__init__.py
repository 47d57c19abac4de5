"""Lua scripts: the interpreter in a cell, and the channel through which a script asks for processes."""
