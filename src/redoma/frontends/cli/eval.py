"""eval: Python on Monty, with its answer as a dictionary."""

from __future__ import annotations

import click

from .emit import json_option
from .plain import evaluate_code
from .state import State


@click.command("eval")
@click.argument("code")
@json_option
@click.pass_obj
def evaluate(state: State, code: str) -> int:
    """Evaluate Python on Monty and print the answer as a dictionary.

    \b
    Example:
      redoma eval "2 + 2"      {'status': 'success', 'output': 4}
    """
    return evaluate_code(state, code)
