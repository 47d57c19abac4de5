"""What a project file that was only found may do, before and after the user has trusted it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from config_place import RULE, Place
from hypothesis import given, settings
from hypothesis import strategies as st

from redoma import config
from redoma.config import Config, layers
from redoma.config.model import SECTIONS
from redoma.lib.errors import ConfigError
from redoma.models import Decision, Limits
from redoma.policy import PACKS
from redoma.policy import load as load_policy

STANDARD = {rule.id: rule.decision for rule in load_policy("standard").rules}
BUILT_IN = {rule.id: rule.decision for rule in load_policy(PACKS[-1]).rules}
FORBIDDEN = next(name for name, decision in STANDARD.items() if decision is Decision.FORBID)
STRICTER = next(name for name, decision in BUILT_IN.items() if decision is Decision.FORBID and name not in STANDARD)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def values(loaded: Config) -> dict[str, Any]:
    return {key: value for key, value, _ in config.describe(loaded)}


# Each way of loosening, with the user's file it loosens.
LOOSENINGS = {
    "limits: {time: 31}": "",
    "limits: {memory: 1GiB}": "",
    "limits: {time: 20}": "limits: {time: 10}",
    "policy: {pack: none}": "",
    "policy: {pack: standard}": "policy: {pack: strict}",
    f"policy: {{decisions: {{{FORBIDDEN}: prompt}}}}": "",
    f"policy: {{decisions: {{{FORBIDDEN}: allow}}}}": "",
    f"policy: {{decisions: {{{STRICTER}: allow}}}}": "",
    "policy: {decisions: {app.no-deploy: allow}}": RULE,
    "policy: {decisions: {app.no-deploy: prompt}}": RULE.replace("forbid", "prompt")
    + "  decisions: {app.no-deploy: forbid}\n",
    "audit: {enabled: false}": "",
    "audit: {directory: /elsewhere}": "",
    "audit: {directory: .}": "",
    "audit: {retention_days: 29}": "",
    "audit: {fsync: false}": "audit: {fsync: true}",
    "approval: {approver: console}": "",
    "approval: {approver: queue}": "approval: {approver: console}",
    "approval: {webhook: 'https://example.com/hook'}": "",
    "approval: {separate: false}": "approval: {separate: true}",
    "approval: {timeout: 301}": "",
    "approval: {expires: 86401}": "",
    "log: {level: debug}": "",
    "log: {level: off}": "log: {level: info}",
    "log: {file: build.log}": "",
    "log: {format: json}": "",
    "namespace: app\nentries: [{name: shell, kind: exec.native}]": "",
}


@pytest.mark.parametrize("text", LOOSENINGS, ids=lambda text: text.replace("\n", " ")[:60])
def test_a_file_that_loosens_has_no_effect_until_it_is_trusted(place: Place, text: str) -> None:
    place.user(LOOSENINGS[text])
    before = place.load()
    place.project_file.write_text(f"{text}\n")

    untrusted = place.load()
    assert values(untrusted) == values(before)
    (notice,) = untrusted.notices
    assert "has no effect, because line " in notice
    assert "redoma config trust" in notice
    assert str(place.project_file) in notice

    config.trust(place.project_file, env=place.env)
    trusted = place.load()
    assert values(trusted) != values(before)
    assert trusted.notices == ()


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("value", [True, "deny", 0, 10**9, ()], ids=repr)
def test_a_key_that_nobody_has_thought_about_loosens_whatever_its_value(section: str, value: Any) -> None:
    """As it would be with a key that is added to a section later. (Every limit is tighter if it is lower.)"""
    before = type(value)() if value != () else ("x",)
    if section != "limits":
        assert not layers._is_tighter(section, "added_later", before, value)


def test_one_loosening_among_tightenings_takes_the_effect_of_the_whole_file(place: Place) -> None:
    place.project_file.write_text("limits: {time: 5, memory: 1TiB}\npolicy: {pack: strict}\n")
    loaded = place.load()
    assert (loaded.limits, loaded.policy.pack) == (Limits(), "standard")


def test_a_rule_of_the_user_cannot_be_redefined_by_a_project(place: Place) -> None:
    place.user(RULE)
    before = place.load()
    place.project_file.write_text(RULE.replace("command: [deploy]", "command: [deploy, x]"))
    assert values(place.load()) == values(before)
    assert "redefines your rule 'app.no-deploy'" in place.load().notices[0]


def test_a_file_that_tightens_works_untrusted(place: Place) -> None:
    place.user(f"audit: {{enabled: false}}\nlimits: {{time: 60}}\npolicy: {{decisions: {{{FORBIDDEN}: allow}}}}\n")
    decisions = f"  decisions: {{app.no-deploy: forbid, {FORBIDDEN}: prompt, {STRICTER}: forbid}}\n"
    rest = "  pack: strict\nlimits: {time: 5, memory: 1MiB}\naudit: {enabled: true, retention_days: 60, fsync: true}\n"
    rest += "approval: {approver: deny, separate: true, timeout: 10, expires: 60}\n"
    place.project_file.write_text(RULE + decisions + rest)
    loaded = place.load()
    assert loaded.notices == ()
    assert (loaded.limits.time, loaded.limits.memory) == (5, 1024 * 1024)
    assert (loaded.audit.enabled, loaded.audit.retention_days, loaded.audit.fsync) == (True, 60, True)
    assert (loaded.approval.separate, loaded.approval.timeout, loaded.approval.expires) == (True, 10, 60)
    assert loaded.policy.pack == "strict"
    decided = {rule.id: rule.decision for rule in loaded.policy.load("core").rules}
    assert (decided["app.no-deploy"], decided[FORBIDDEN]) == (Decision.FORBID, Decision.PROMPT)


def test_a_named_file_is_trusted(place: Place) -> None:
    assert place.load(place.named("policy: {pack: none}\nlimits: {time: 99}\n")).limits.time == 99


# Trust is of exact content at an exact place


def test_one_changed_byte_ends_trust_and_changing_it_back_restores_it(place: Place) -> None:
    place.project_file.write_text("limits: {time: 60}\n")
    config.trust(place.project_file, env=place.env)
    assert place.load().limits.time == 60
    place.project_file.write_text("limits: {time: 61}\n")
    assert place.load().limits.time == 30
    place.project_file.write_text("limits: {time: 60} \n")
    assert place.load().limits.time == 30
    place.project_file.write_text("limits: {time: 60}\n")
    assert place.load().limits.time == 60


def test_the_same_content_elsewhere_is_not_trusted(place: Place) -> None:
    place.project_file.write_text("limits: {time: 60}\n")
    config.trust(place.project_file, env=place.env)
    other = place.home / "other"
    other.mkdir()
    (other / "redoma.yaml").write_text("limits: {time: 60}\n")
    assert place.load(cwd=other).limits.time == 30


def test_a_link_is_trusted_as_what_it_points_to(place: Place) -> None:
    first, second = place.home / "first.yaml", place.home / "second.yaml"
    for target in (first, second):
        target.write_text("limits: {time: 60}\n")
    place.project_file.symlink_to(first)
    assert place.load().limits.time == 30
    config.trust(place.project_file, env=place.env)
    assert place.load().limits.time == 60
    place.project_file.unlink()
    place.project_file.symlink_to(second)
    assert place.load().limits.time == 30


def test_trust_can_be_listed_and_taken_back(place: Place) -> None:
    place.project_file.write_text("limits: {time: 60}\n")
    source = config.trust(place.project_file, env=place.env)
    assert config.trusted_files(place.env) == {place.project_file: source.digest}
    place.project_file.unlink()
    assert config.untrust(place.project_file, env=place.env)
    assert not config.untrust(place.project_file, env=place.env)
    assert config.trusted_files(place.env) == {}


def test_a_file_that_changed_after_it_was_shown_is_not_trusted(place: Place) -> None:
    place.project_file.write_text("limits: {time: 60}\n")
    shown, loosened = config.loosenings(place.project_file, env=place.env)
    assert loosened == ["line 1 raises limits.time from 30.0 to 60.0"]
    place.project_file.write_text("limits: {time: 61}\n")
    with pytest.raises(ConfigError, match="changed since it was shown"):
        config.trust(shown.path, digest=shown.digest, env=place.env)
    assert config.trusted_files(place.env) == {}
    place.project_file.write_text("limits: {time: 60}\n")
    assert config.trust(shown.path, digest=shown.digest, env=place.env) == shown


def test_a_broken_file_cannot_be_trusted(place: Place) -> None:
    place.project_file.write_text("limits: {tiem: 60}\n")
    with pytest.raises(ConfigError, match="tiem"):
        config.trust(place.project_file, env=place.env)


# The list of trusted files


def test_the_list_is_private_whatever_the_umask(place: Place) -> None:
    place.project_file.write_text("limits: {time: 60}\n")
    before = os.umask(0)
    try:
        config.trust(place.project_file, env=place.env)
    finally:
        os.umask(before)
    state = config.state_directory(place.env)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "trusted.json").stat().st_mode) == 0o600
    assert not list(state.glob("*.new"))


@pytest.mark.parametrize("spoil", ["group", "directory", "link", "damage", "shape"])
def test_a_list_that_somebody_else_could_have_written_is_refused(place: Place, spoil: str) -> None:
    place.project_file.write_text("limits: {time: 60}\n")
    config.trust(place.project_file, env=place.env)
    state = config.state_directory(place.env)
    listed = state / "trusted.json"
    match spoil:
        case "group":
            listed.chmod(0o660)
        case "directory":
            state.chmod(0o777)
        case "link":
            listed.rename(place.home / "planted.json")
            listed.symlink_to(place.home / "planted.json")
        case "damage":
            listed.write_bytes(listed.read_bytes()[:-9])
        case "shape":
            listed.write_text('{"files": [1]}')
    with pytest.raises(ConfigError, match="list of trusted files"):
        place.load()


def test_an_unwritable_state_directory_is_a_clear_error(place: Place) -> None:
    place.project_file.write_text("limits: {time: 60}\n")
    (place.home / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be written"):
        config.trust(place.project_file, env={**place.env, "REDOMA_STATE_DIR": str(place.home / "file" / "state")})


def test_processes_that_trust_at_the_same_time_lose_nothing(place: Place) -> None:
    script = (
        "import sys, pathlib, redoma.config.schema, redoma.config as c\n"
        "sys.stdin.read()\n"  # until the test closes it: all begin together
        "for name in sys.argv[1:]: c.trust(pathlib.Path(name))"
    )
    names = [[str(place.home / f"{worker}-{i}.yaml") for i in range(25)] for worker in range(4)]
    for name in (name for each in names for name in each):
        Path(name).write_text("limits: {time: 60}\n")
    workers = [
        subprocess.Popen([sys.executable, "-c", script, *each], env=place.env, stdin=subprocess.PIPE) for each in names
    ]
    time.sleep(0.5)
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
    assert [worker.wait() for worker in workers] == [0] * 4
    assert len(config.trusted_files(place.env)) == 100


# Somebody else's file


@pytest.fixture
def somebody_elses(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A project whose file belongs to another user."""
    place.project_file.write_text("")
    if os.geteuid() == 0:
        os.chown(place.project_file, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65533)
    return place


def test_a_broken_file_of_another_user_is_ignored_and_said_so(somebody_elses: Place) -> None:
    with somebody_elses.project_file.open("w") as stream:
        stream.write("limits: {tiem: 5}\n")
    loaded = somebody_elses.load()
    assert loaded.limits == Limits()
    assert "has no effect, because it belongs to the user" in loaded.notices[0]


@pytest.mark.parametrize("seconds", [5, 60])
def test_a_file_of_another_user_says_nothing_until_its_content_is_trusted(somebody_elses: Place, seconds: int) -> None:
    with somebody_elses.project_file.open("w") as stream:
        stream.write(f"limits: {{time: {seconds}}}\n")
    assert somebody_elses.load().limits == Limits()
    if os.geteuid() == 0:  # else the list of trusted files would have to be another user's, too
        config.trust(somebody_elses.project_file, env=somebody_elses.env)
        assert somebody_elses.load().limits.time == seconds
        with somebody_elses.project_file.open("a") as stream:
            stream.write("\n")
        assert somebody_elses.load().limits == Limits()


def test_a_file_of_another_user_does_not_hide_the_one_above_it(somebody_elses: Place) -> None:
    below = somebody_elses.project_file.parent / "uploads"
    below.mkdir()
    (below / "redoma.yaml").symlink_to("/dev/null")
    below.chmod(0o777)
    somebody_elses.project_file.unlink()
    somebody_elses.project_file.write_text("limits: {time: 7}\n")
    loaded = config.load(cwd=below, env=somebody_elses.env)
    assert len(loaded.notices) == (1 if os.geteuid() == 0 else 2)
    assert loaded.limits.time == (7 if os.geteuid() == 0 else 30)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("how", ["a file", "a file for all", "a link", "a directory", "a directory for all", "above"])
def test_whoever_could_have_put_a_file_there_is_told(place: Place, how: str) -> None:
    """Also where the file itself is ours: another user may have moved it, or linked to it."""
    sub = place.project_file.parent / "above" / "sub"
    sub.mkdir(parents=True)
    file = sub / "redoma.yaml"
    file.write_text("limits: {time: 5}\n")
    assert config.load(cwd=sub, env=place.env).limits.time == 5
    match how:
        case "a file":
            os.chown(file, 65534, -1)
        case "a file for all":
            file.chmod(0o666)
        case "a link":
            file.rename(sub / "other.yaml")
            file.symlink_to("other.yaml")
            assert config.load(cwd=sub, env=place.env).limits.time == 5
            os.chown(file, 65534, -1, follow_symlinks=False)
        case "a directory":
            os.chown(sub, 65534, -1)
        case "a directory for all":
            sub.chmod(0o777)
        case "above":
            sub.parent.chmod(0o777)
    loaded = config.load(cwd=sub, env=place.env)
    assert loaded.limits.time == 30
    assert f"redoma config trust {file}" in loaded.notices[0]
    if how in ("a file", "a directory", "a link"):
        assert config.load(cwd=sub, env={**place.env, "SUDO_UID": "65534"}).limits.time == 5
        assert config.load(cwd=sub, env={**place.env, "SUDO_UID": "1"}).limits.time == 30
    sub.chmod(0o1777)  # as /tmp
    sub.parent.chmod(0o1777)
    os.chown(sub, 0, -1)
    assert config.load(cwd=sub, env=place.env).limits.time == (30 if how.startswith("a file") or how == "a link" else 5)


# Whatever a project file says, it can't weaken what is in force


_DECISIONS = st.sampled_from([str(decision) for decision in Decision])
_AUDIT = {
    "enabled": st.booleans(),
    "fsync": st.booleans(),
    "retention_days": st.integers(1, 60),
    "directory": st.sampled_from(["/a", "/b", "~/.local/state/redoma/audit"]),
}
_RULES = st.dictionaries(
    st.sampled_from(["own.a", "own.b"]),
    st.fixed_dictionaries({"decision": st.sampled_from(["prompt", "forbid"]), "command": st.just(["x"])}),
).map(lambda rules: [{"id": name, "reason": "because", **rest} for name, rest in rules.items()])
_FILES = st.fixed_dictionaries(
    {},
    optional={
        "limits": st.fixed_dictionaries({}, optional={"time": st.integers(1, 60), "memory": st.integers(2**20, 2**30)}),
        "audit": st.fixed_dictionaries({}, optional=_AUDIT),
        "policy": st.fixed_dictionaries(
            {},
            optional={
                "pack": st.sampled_from(PACKS),
                "rules": _RULES,
                "decisions": st.dictionaries(st.sampled_from([*BUILT_IN]), _DECISIONS, max_size=3),
            },
        ),
    },
)


def weaknesses(before: Config, after: Config) -> list[str]:
    """In what `after` is weaker, computed from the finished values alone."""
    weaker = [name for name in Limits.__struct_fields__ if getattr(after.limits, name) > getattr(before.limits, name)]
    ordered = ("enabled", "fsync", "retention_days")
    weaker += [name for name in ordered if getattr(after.audit, name) < getattr(before.audit, name)]
    if after.audit.directory != before.audit.directory or after.entries != before.entries:
        weaker.append("directory or entries")
    for pack in (None, *PACKS):  # the configured pack, and any that a run may ask for
        decisions = {rule.id: rule.decision for rule in after.policy.load(pack).rules}
        weaker += [
            f"{rule.id} in {pack}"
            for rule in before.policy.load(pack).rules
            if rule.id not in decisions or decisions[rule.id] < rule.decision
        ]
    return weaker


@settings(max_examples=80, deadline=None)
@given(user=_FILES, project=_FILES)
def test_no_untrusted_project_file_weakens_what_is_in_force(user: dict[str, Any], project: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as root:
        place = Place(Path(root))
        place.user(json.dumps(user))
        before = place.load()
        place.project_file.write_text(json.dumps(project))
        after = place.load()
        assert weaknesses(before, after) == []
        if after.notices:
            assert values(after) == values(before)
        else:  # it was not just ignored
            assert {key: values(after)[f"limits.{key}"] for key in project.get("limits", {})} == project.get(
                "limits", {}
            )
