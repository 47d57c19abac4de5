"""A model of LangChain that calls a sandbox. A scripted model stands in for a real one."""

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall

from redoma.integrations.langchain import tools
from redoma.integrations.sandbox import Sandbox

call = ToolCall(name="run_python", args={"code": "sum(range(10))"}, id="1")
model = FakeMessagesListChatModel(responses=[AIMessage("", tool_calls=[call]), AIMessage("It is 45.")])

with Sandbox() as sandbox:
    known = {tool.name: tool for tool in tools(sandbox)}
    messages: list[BaseMessage] = [HumanMessage("What is the sum of the numbers below ten?")]
    while (answer := model.invoke(messages)).tool_calls:  # a real one: model.bind_tools(tools(sandbox))
        messages += [answer, *(known[each["name"]].invoke(each) for each in answer.tool_calls)]
    print(messages[-1].content)
    print(answer.content)
