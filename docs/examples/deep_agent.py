"""A Deep Agent whose shell and files are a sandbox. A scripted model stands in for a real one."""

from collections.abc import Sequence
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolCall

from redoma.integrations.deepagents import RedomaBackend
from redoma.integrations.sandbox import Sandbox


class Scripted(FakeMessagesListChatModel):  # type: ignore[misc] # its types are not read
    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        return self


write = ToolCall(name="write_file", args={"file_path": "/tmp/a.txt", "content": "one\ntwo\n"}, id="1")  # noqa: S108
count = ToolCall(name="execute", args={"command": "wc -l < /tmp/a.txt"}, id="2")
script = [AIMessage("", tool_calls=[write]), AIMessage("", tool_calls=[count]), AIMessage("It has two lines.")]

with Sandbox() as sandbox:
    agent = create_deep_agent(model=Scripted(responses=list(script)), backend=RedomaBackend(sandbox))
    messages = agent.invoke({"messages": [{"role": "user", "content": "Write two lines, and count them."}]})["messages"]
    print(messages[-2].content.splitlines()[0])
    print(messages[-1].content)
