"""What is left out on the way of most requests: each shortcut must find what the long way finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoma import Config
from redoma.backends.base import Capabilities, unmet_needs
from redoma.config import AuditConfig
from redoma.models import Evaluation, Isolation, Judged, Limits, Request, Submission
from redoma.models.reach import NOTHING, Reach
from redoma.output.capture import Ends, Text
from redoma.pipeline import intake, intents
from redoma.redaction import Redactor
from redoma.redaction.redactor import replace

CONFIG = Config(audit=AuditConfig(directory=Path("/nowhere")))
DEFAULTS: dict[str, Any] = {
    "args": (),
    "limits": None,
    "timeout": None,
    "memory": None,
    "stdin": b"",
    "env": {},
    "secrets": {},
    "network": None,
    "environment": None,
    "packages": None,
    "files": {},
    "outputs": (),
    "checkpoint": None,
    "require": (),
    "reason": "",
    "requester": None,
    "label": "",
    "backend": "auto",
    "cwd": None,
    "workspace": "scratch",
    "project": None,
}
GIVEN: dict[str, Any] = {
    **DEFAULTS,
    "args": ["a"],
    "limits": {"time": 3},
    "memory": "64MiB",
    "stdin": "text",
    "env": {"A": "b"},
    "secrets": {"KEY": "long enough"},
    "network": ["example.org"],
    "files": {"a": "b"},
    "outputs": ["*.csv"],
    "require": ["seccomp"],
    "reason": "because",
    "requester": "ana",
    "label": "daily",
    "backend": "jail",
}
names = st.sets(st.sampled_from(sorted(DEFAULTS)))


@given(names, names)
def test_an_option_that_is_left_out_is_its_default(given: set[str], spelt_out: set[str]) -> None:
    options = {name: GIVEN[name] for name in given}
    longer = {**{name: DEFAULTS[name] for name in spelt_out}, **options}
    short, long = (
        intake.build(CONFIG, ["jail"], each, code="x", language="python")  # type: ignore[arg-type]
        for each in (options, longer)
    )
    assert msgspec.structs.replace(short, id="") == msgspec.structs.replace(long, id="")


SECRET = "Tr0ub4dor-and-3"
PIECES = st.sampled_from(
    ["", "plain", SECRET, "ghp_" + "x9Yk2LmN" * 4 + "x9Yk", "pass=hunter2hunter2", "\ud800é", "x\ny"]
)
requests = st.builds(
    Request,
    code=PIECES,
    argv=st.lists(PIECES, max_size=2).map(tuple),
    reason=PIECES,
    requester=PIECES,
    label=PIECES,
    require=st.lists(PIECES, max_size=2).map(tuple),
    env=st.dictionaries(st.sampled_from(["A", "PASSWORD"]), PIECES, max_size=2),
    secrets=st.sampled_from([{}, {"KEY": SECRET}]),
)


@given(requests, st.lists(PIECES, max_size=2).map(tuple))
def test_the_record_of_an_intent_is_that_of_redacting_each_field(request_: Request, why: tuple[str, ...]) -> None:
    evaluation = Evaluation(policy="standard", digest="0" * 64)
    judged = Judged(submission=Submission(request_), evaluation=evaluation, level_why=why)
    redactor = Redactor(request_.secrets.values())
    short = intents.intent_record(judged, None, intents.KeptContent(), redactor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intents, "_to_redact", lambda given, _: [name for name in intents._REDACTED if given.get(name)])
        assert short == intents.intent_record(judged, None, intents.KeptContent(), redactor)


def table_of_needs(can: Capabilities, request: Request, *, controlled: bool, inside: bool) -> list[str]:
    needs = {
        f"{request.language} code": request.kind in can.languages,
        "arguments": can.arguments or not request.argv or request.language in ("command", "lua"),
        "input": can.stdin or not request.stdin,
        "input and signals while it runs": can.control or not controlled,
        "variables": can.env or not request.environment,
        "files": can.files or not request.files,
        "files to bring back": can.outputs or not request.outputs,
        "named hosts of the network": can.network or not request.network,
        "packages of an environment": can.environments or request.uses is None,
        f"the workspace {request.workspace!r}": request.workspace in can.workspaces,
        "a working directory on the host": can.cwd or not request.cwd or request.project or inside,
        **{f"the isolation layer {layer!r}": False for layer in can.isolation.lacking(request.require)},
        **{
            f"a limit on {field}": False
            for field in Limits.__struct_fields__
            if field not in can.limits and getattr(request.limits, field) != getattr(Limits(), field)
        },
    }
    return [need for need, met in needs.items() if not met]


yes = st.booleans()
capabilities = st.builds(
    Capabilities,
    languages=st.sampled_from([frozenset({"python"}), frozenset({"command", "lua"})]),
    isolation=st.sampled_from([Isolation(), Isolation(layers={"seccomp": "on"})]),
    limits=st.sampled_from([frozenset(), frozenset({"time"}), frozenset(Limits.__struct_fields__)]),
    arguments=yes,
    stdin=yes,
    env=yes,
    files=yes,
    outputs=yes,
    cwd=yes,
    control=yes,
    network=yes,
    environments=yes,
    workspaces=st.sampled_from([frozenset({"scratch"}), frozenset({"overlay"})]),
)
wanted = st.builds(
    lambda where, **fields: Request(**where, **fields),
    st.sampled_from(
        [
            {"code": "x", "files": {"a": b"b"}, "outputs": ("*",)},
            {"code": "x", "argv": ("a",), "cwd": "/tmp", "env": {"A": "b"}},
            {"argv": ("a",), "language": "command", "workspace": "overlay", "project": "/srv", "cwd": "/srv"},
        ]
    ),
    stdin=st.sampled_from([b"", b"x"]),
    limits=st.sampled_from([Limits(), Limits(time=3, disk=1 << 20)]),
    require=st.sampled_from([(), ("seccomp",), ("landlock", "landlock")]),
)


@given(capabilities, wanted, yes, yes)
def test_what_a_backend_lacks_is_as_the_table_of_all_needs_says(
    can: Capabilities, request_: Request, controlled: bool, inside: bool
) -> None:
    long = table_of_needs(can, request_, controlled=controlled, inside=inside)
    assert list(dict.fromkeys(unmet_needs(can, request_, controlled=controlled, inside=inside))) == long


@given(st.integers(1, 8), st.lists(st.sampled_from([b"", b"a", b"key\n", b"0123456789"]), max_size=4))
def test_a_stream_without_output_is_that_of_cleaning_nothing(keep: int, pieces: list[bytes]) -> None:
    redactor, ends = Redactor([SECRET]), Ends(keep)
    for piece in pieces:
        ends.add(piece)
    nothing = Text(*replace(redactor.sanitise(b""), redactor.find(b"")))
    assert (ends.clean(redactor) == nothing) is (b"".join(pieces) == b"")


reaches = st.builds(
    Reach, files=st.sampled_from(["none", "later", "effect", "host"]), network=yes, system=yes, hosts=yes
)


@given(reaches, reaches, st.sampled_from(["scratch", "overlay", "direct", "read-only"]), yes)
def test_the_reach_over_a_workspace_is_the_union(one: Reach, other: Reach, workspace: str, hosts: bool) -> None:
    assert one | NOTHING == one == NOTHING | one
    assert one.over(workspace, hosts=hosts) == one | Reach(
        files="later" if workspace == "overlay" else "none", hosts=hosts
    )
    assert one.within(other) == (one | other == other)
