"""A call that may need a person, in three steps: try it, ask, try it again.

`attempt` submits the call without waiting. If a person has to approve it first, nothing has run, and a question is in
the ledger. `ask` has the client show that question. A yes is written to the ledger, for the digest that was shown, and
`attempt` is made again: it finds the approval if, and only if, it is still exactly the same.

Both are resolvers of the SDK, which work in both eras of the protocol: until 2025-11-25 the client is asked while the
call waits; from 2026-07-28 on the call ends with the question, and the client makes it again with the answer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

from mcp.server.elicitation import AcceptedElicitation, CancelledElicitation, DeclinedElicitation, ElicitationResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from ...approval import describe
from ...lib import files
from ...lib.errors import RedomaError
from .answers import MAX_TEXT, clean
from .tool_host import ToolHost


class Tried(NamedTuple):
    """What came of a call: its answer, which says so if a person has to approve it first."""

    result: CallToolResult
    approval: str = ""
    """The id of the question, if a person has to approve it."""


class ApprovalForm(BaseModel, title="Answer"):
    """What a person answers."""

    approve: bool = Field(description="Whether exactly this may happen, once.")
    reason: str = Field(default="", description="Why, for the record.")


Attempt = Callable[..., Awaitable[Tried]]
P = ParamSpec("P")
T = TypeVar("T")


def telling(host: ToolHost, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The function, with the model told of errors that it can do something about: what happened, why, what to do next.
    Any other error is a bug of ours, of which the client gets no detail."""

    @functools.wraps(function)
    async def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except RedomaError as error:
            raise ToolError(clean(host.words(str(error)), MAX_TEXT)) from error
        except OSError as error:  # of a file in a session, as `open` raises it
            named = f": {error.filename}" if error.filename else ""
            raise ToolError(clean(f"{files.reason(error)}{named}")) from error

    return told


_QUESTION = "Redoma: may this run, once? An agent has asked for it, and policy wants a person to decide.\n\n"


def with_approval(host: ToolHost, attempt: Attempt, output: type[BaseModel]) -> Callable[..., Any]:
    """The function of a tool that does what `attempt` does, and has a person asked where that is needed.

    `attempt` takes the context as `ctx`, and the arguments of the tool. `output` is the type of its structured answer.
    """

    async def ask(tried: Tried, ctx: Context[Any, Any]) -> Elicit[ApprovalForm] | None:
        if not tried.approval or not _can_be_asked(ctx):
            return None
        question = await host.question(host.caller(ctx), tried.approval)
        return None if question is None else Elicit(_QUESTION + describe(question).text, ApprovalForm)

    tries: Any = Annotated[Tried, Resolve(attempt)]
    ask.__annotations__ = {"tried": tries, "ctx": Context, "return": Elicit[ApprovalForm] | None}
    asks: Any = Annotated[ElicitationResult[ApprovalForm], Resolve(telling(host, ask))]

    async def call(**given: Any) -> CallToolResult:
        tried: Tried = given.pop("tried")
        outcome: ElicitationResult[ApprovalForm] = given.pop("answer")
        ctx: Context[Any, Any] = given["ctx"]
        match outcome:
            case AcceptedElicitation(data=ApprovalForm(approve=True) as said):
                await host.decide(host.caller(ctx), tried.approval, "approved", said.reason)
                return (await attempt(**given)).result
            case AcceptedElicitation(data=ApprovalForm() as said):
                return await _denied(host, ctx, tried, said.reason)
            case DeclinedElicitation():
                return await _denied(host, ctx, tried, "")
            case CancelledElicitation() | _:
                return tried.result

    _take_arguments_of(attempt, call, {"tried": tries, "answer": asks}, output)
    return telling(host, call)


def _take_arguments_of(
    attempt: Attempt, call: Callable[..., Any], resolved: dict[str, Any], output: type[BaseModel]
) -> None:
    """Give `call` the name, documentation and arguments of `attempt`, as the SDK reads them, and those to resolve."""
    signature = inspect.signature(attempt, eval_str=True)
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in resolved.items()]
    given = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    returns = Annotated[CallToolResult, output]
    call.__name__, call.__qualname__, call.__doc__ = attempt.__name__, attempt.__qualname__, attempt.__doc__
    call.__signature__ = inspect.Signature([*given, *more], return_annotation=returns)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in [*given, *more]} | {"return": returns}


def _can_be_asked(ctx: Context[Any, Any]) -> bool:
    """Whether the client shows forms. An empty capability, as older clients send it, means that it does."""
    able = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    return able is not None and (able.form is not None or able.url is None)


async def _denied(host: ToolHost, ctx: Context[Any, Any], tried: Tried, reason: str) -> CallToolResult:
    caller = host.caller(ctx)
    await host.decide(caller, tried.approval, "denied", reason)
    why = "a person has denied it" + (f": {reason.strip()[:1000]}" if reason.strip() else "")
    data: dict[str, Any] = dict(tried.result.structured_content)
    run = data.get("run") if "run" in data else data
    if isinstance(run, dict):
        run |= {"status": "denied", "ending": "refused", "error": why}
    data["approval"] = None
    text = f"status: denied\nerror: {why}\nnext: don't try it again; find another way, or ask what would be allowed"
    return CallToolResult(content=[TextContent(text=text)], structured_content=data, is_error=True)
