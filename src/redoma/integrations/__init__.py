"""Redoma in other people's frameworks. Each module is thin, and needs the framework that it is named after:

    jupyter          a kernel whose cells run in a session (`redoma kernel install`)
    pydantic_ai      a toolset for agents of Pydantic AI
    langchain        tools for LangChain and LangGraph
    deepagents       a backend for Deep Agents
    smolagents       an executor for the CodeAgent of smolagents
    openai_agents    tools for the OpenAI Agents SDK
    inspect          sandboxes for evaluations with inspect_ai, which finds it by its entry point

    sandbox          the session that the tools of an agent use (`Sandbox`)

All of them run code through the ordinary pipeline, so policy, approval, limits and the record are those of any run; the
requester says which framework it was. What a model gets back is `result.to_text()`: bounded, and without secrets.
"""
