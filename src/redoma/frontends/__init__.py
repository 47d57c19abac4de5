"""Entry points for people and programs: parse, pass to the executor, render."""
