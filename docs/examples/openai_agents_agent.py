"""An agent of the OpenAI Agents SDK with a sandbox. A scripted model stands in for a real one."""

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from redoma.integrations.openai_agents import tools
from redoma.integrations.sandbox import Sandbox


class Scripted(Model):  # type: ignore[misc] # its types are not read
    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **more: Any) -> ModelResponse:  # noqa: A002
        returned = [item["output"] for item in input if isinstance(item, dict) and "output" in item]
        output: Any
        if returned:
            said = ResponseOutputText(text=f"the tool said:\n{returned[-1]}", type="output_text", annotations=[])
            output = ResponseOutputMessage(id="2", content=[said], role="assistant", status="completed", type="message")
        else:
            arguments = json.dumps({"code": "sum(range(10))"})
            output = ResponseFunctionToolCall(call_id="1", name="run_python", arguments=arguments, type="function_call")
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *given: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


set_tracing_disabled(True)  # or it would be sent to OpenAI
with Sandbox() as sandbox:
    agent = Agent(name="counts", model=Scripted(), tools=tools(sandbox))
    print(Runner.run_sync(agent, "What is the sum of the numbers below ten?").final_output)
