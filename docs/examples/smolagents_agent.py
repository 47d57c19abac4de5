"""A CodeAgent of smolagents whose code runs in a sandbox. A scripted model stands in for a real one."""

from typing import Any

from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool

from redoma.integrations.sandbox import Sandbox
from redoma.integrations.smolagents import RedomaExecutor


@tool  # type: ignore[untyped-decorator] # it has no types
def square(number: int) -> int:
    """Square a number.

    Args:
        number: Any number.
    """
    return number * number


class Scripted(Model):  # type: ignore[misc] # its types are not read
    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        code = "total = sum(square(n) for n in range(4))\nprint('so far', total)\nfinal_answer(total)"
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: easy.\n<code>\n{code}\n</code>")


with Sandbox() as sandbox:
    agent = CodeAgent(tools=[square], model=Scripted(), executor=RedomaExecutor(sandbox), verbosity_level=0)
    print(agent.run("What is the sum of the first squares?"))
