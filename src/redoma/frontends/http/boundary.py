"""What passes between callers and the executor: requests within what the server allows, results without its paths."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from ...lib.errors import InvalidRequest
from ...lib.units import format_size
from ...models import Limits, Result, Submission
from ...models.request import SIZES
from ...pipeline.intake import Options
from ..shapes import result_json
from .bodies import RunBody, SessionRunBody, SomeLimits, content, encode
from .keys import Key
from .problems import not_allowed, without_paths

if TYPE_CHECKING:
    from ...config import Config
    from ...pipeline.executor import AsyncExecutor

MAX_FACTOR = 10
"""A caller may request up to this many times a configured limit, unless `server.max_limits` sets another maximum."""


class Boundary:
    """Turns what callers send into submissions, and results into what callers may see."""

    def __init__(self, config: Config, executor: AsyncExecutor) -> None:
        self._executor, self._limits, self._projects = executor, config.limits, config.server.projects
        given, configured = config.server.max_limits, msgspec.structs.asdict(config.limits)
        self._max = {name: given.get(name, MAX_FACTOR * value) for name, value in configured.items()}
        self._state = str(config.state)

    def prepare(self, key: Key, body: RunBody) -> Submission:
        """Turn a caller's request into a submission. Raises `InvalidRequest`, or `Answered` if it is not allowed."""
        options = self._options(key, body)
        must_have_code(body)
        if body.language == "command":
            return self._executor.prepare(list(body.argv), None, options)
        return self._executor.prepare_code(body.code, body.language, {**options, "args": body.argv})

    def policy_for(self, key: Key, policy: str | None) -> str | None:
        """Return the policy that a caller named. Raises `Answered` if the key may not choose one."""
        if policy is not None and not key.may("admin"):
            raise not_allowed("admin, which choosing a policy needs")
        return policy

    def limits_of(self, given: SomeLimits) -> dict[str, Any]:
        """Return the limits that a caller named. Raises `InvalidRequest` if one is above the allowed maximum."""
        limits = {name: value for name in Limits.__struct_fields__ if (value := getattr(given, name)) is not None}
        if limits:
            self.must_be_within(limits)
        return limits

    def _options(self, key: Key, body: RunBody) -> Options:
        options: Options = {
            "backend": body.backend,
            "policy": self.policy_for(key, body.policy),
            "limits": self.limits_of(body.limits),
            "stdin": content(body.stdin),
            "env": body.env,
            "secrets": body.secrets,
            "network": body.network or None,
            "environment": body.environment or None,
            "packages": body.packages or None,
            "files": {name: content(given) for name, given in body.files.items()},
            "outputs": body.outputs,
            "require": body.require,
            "expect": body.expect,
            "reason": body.reason,
            "label": body.label,
            "requester": key.requester,
            "wait": False,
        }
        if project := self.project_for(body.workspace, body.project):
            options["workspace"], options["project"], options["cwd"] = body.workspace, project, project
        return options

    def project_for(self, workspace: str, name: str) -> str:
        """Return the directory of the workspace's project; empty for `scratch`. Raises `InvalidRequest`."""
        if workspace == "scratch":
            if name:
                why, step = "scratch has none", 'add "workspace": "read-only"'
                raise InvalidRequest("a project was named without a workspace", why=why, next=step)
            return ""
        if name not in self._projects:
            raise InvalidRequest(
                f"there is no project {name!r}",
                why=f"the server offers {', '.join(self._projects) or 'none'}",
                next="name one of those; `server.projects` of its redoma.yaml lists them",
            )
        return os.path.realpath(self._projects[name])

    def must_be_within(self, limits: dict[str, Any]) -> None:
        """Raise `InvalidRequest` if a limit is above the maximum that callers may request."""
        # `Limits` turns texts such as `256MiB` into numbers.
        wanted = msgspec.structs.replace(self._limits, **limits)
        for name in limits:
            if getattr(wanted, name) > self._max[name]:
                raise InvalidRequest(
                    f"the limit {name} is {limits[name]!r}",
                    why=f"this server allows {_in_its_unit(name, self._max[name])} at most",
                    next="ask for less, or have `server.max_limits` raised",
                )

    def encoded(self, result: Result, id: str) -> bytes:
        """Return a result as JSON, without paths of this host."""
        shape = result_json(result) | {"id": id}
        if result.effect is not None:
            shape["effect"]["project"] = self.project_name(result.effect.project)
        layers = result.isolation.layers
        shape["isolation"]["layers"] = {name: without_paths(said) for name, said in layers.items()}
        shape["passed_over"] = {name: without_paths(why) for name, why in result.passed_over.items()}
        if result.error:
            shape["error"] = self.without_roots(result.error)
        if result.denial is not None:
            shape["denial"] = {
                name: self.without_roots(value) if isinstance(value, str) else value
                for name, value in shape["denial"].items()
            }
        return encode(shape)

    def project_name(self, path: str) -> str:
        """Return the name that callers use for the project at this path."""
        for name, directory in self._projects.items():
            if os.path.realpath(directory) == path:
                return name
        return "(another project)"

    def without_roots(self, text: str) -> str:
        """Return the text with the paths of projects and of the state directory replaced by names in brackets."""
        names: dict[str, str] = {}
        for name, path in (*self._projects.items(), ("state", self._state)):
            names[str(path)] = names[os.path.realpath(str(path))] = name  # runs use the real path
        for root in sorted(names, key=len, reverse=True):  # a directory inside another one first
            text = text.replace(root, f"[{names[root]}]")
        return text


def _in_its_unit(limit: str, value: float) -> str:
    return format_size(int(value)) if limit in SIZES else f"{value:.15g}"


def must_have_code(body: RunBody | SessionRunBody) -> None:
    """Raise `InvalidRequest` if a request has no code, or is a command and has some."""
    if body.language == "command" and body.code:
        raise InvalidRequest("a command has no code", why="argv is the command", next="leave code out")
    if body.language != "command" and not body.code:
        raise InvalidRequest("there is nothing to run", why="code is empty", next='send {"code": "print(6 * 7)"}')
