"""Where people and programs come in: parse, hand to the executor, render."""
