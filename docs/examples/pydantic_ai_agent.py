"""An agent of Pydantic AI with a sandbox. A scripted model stands in for a real one."""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from redoma.integrations import pydantic_ai
from redoma.integrations.sandbox import Sandbox


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    returned = [part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if returned:
        return ModelResponse(parts=[TextPart(f"the tool said:\n{returned[0]}")])
    return ModelResponse(parts=[ToolCallPart("run_python", {"code": "sum(range(10))"})])


with Sandbox() as sandbox:
    agent = Agent(FunctionModel(scripted), toolsets=[pydantic_ai.toolset(sandbox)])
    print(agent.run_sync("What is the sum of the numbers below ten?").output)
