"""Check what policy says about code or a command, without running it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from litestar import Response, post
from litestar.openapi.spec import Example
from litestar.params import Body

from ....models import Submission
from ..access import service_of
from ..bodies import CheckBody, Checked, RunBody
from ..keys import Key
from ..service import Service
from .answers import KeyedRequest, described, reply

_Asked = Annotated[
    CheckBody,
    Body(
        examples=[
            Example(summary="Bash", value={"code": "rm -rf build", "language": "bash"}),
            Example(summary="Another policy", value={"code": "import os", "policy": "strict"}),
        ]
    ),
]


def judged(service: Service, key: Key, body: CheckBody) -> Checked:
    """Return the verdict on a request that a key would make."""
    wanted = RunBody(code=body.code, argv=body.argv, language=body.language)
    submission = service.boundary.prepare(key, wanted)
    found = service.executor.judge(Submission(request=submission.request, policy=body.policy))
    return Checked(
        decision=found.evaluation.decision.value,
        policy=found.evaluation.policy,
        digest=found.evaluation.digest,
        findings=found.evaluation.findings,
        level=found.level,
        level_why=found.level_why,
        backend=service.executor.place(submission),
    )


@post(
    "/v1/policy/check",
    **described("policy", "What policy says of it, without running it", Checked, "The verdict.", scope="run"),
)
async def policy_check(request: KeyedRequest, data: _Asked) -> Response[bytes]:
    verdict = await asyncio.to_thread(judged, service_of(request), request.user, data)
    return reply(verdict)


HANDLERS = (policy_check,)
