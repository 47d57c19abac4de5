"""eval: Python on Monty, and its answer as a dictionary."""

from __future__ import annotations

import click

from .emit import emit, json_option
from .options import State


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
    from redoma.facades.safe import answer
    from redoma.frontends.shapes import json_value
    from redoma.pipeline.sync import Executor

    with Executor(state.config) as executor:
        result = executor.run(code, backend="monty")
    emit(
        answer(result),
        lambda said: [repr(said)],
        shape=lambda said: {key: json_value(value) for key, value in said.items()},
    )
    return 0 if result.ok else 1
