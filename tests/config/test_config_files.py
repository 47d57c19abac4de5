"""Reading `redoma.yaml`: what is accepted, what is refused and how it is said, and what wins over what."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from config_place import RULE, Place
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redoma import config
from redoma.config import InvalidFile, NativeEntry
from redoma.lib.errors import ConfigError
from redoma.models import Decision, MiB
from redoma.policy import load as load_policy


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A directory of a user who is not root: root may read everything, so a refusal can't be seen as root."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.chown(name, 65534, -1)
        os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def problems(place: Place, text: str | bytes) -> list[tuple[int, int, str, str]]:
    found = config.check(place.named(text), env=place.env)
    return [(each.line, each.column, each.key, f"{each.message} | {each.hint}") for each in found]


# What a file may say


def test_everything_a_file_may_say_is_read(place: Place) -> None:
    text = """\
version: "1.0"
namespace: app
entries:
  - name: shell
    kind: exec.native
    default_work_dir: /srv/app
    default_env: {LANG: C.UTF-8, ANSWER: "NO"}
    command_whitelist: ["git status", "ls -la"]
limits: {time: 10, memory: 256MiB, output_bytes: 512KB, file_size: 1.5GiB, output_lines: 500}
audit: {enabled: false, directory: ~/x, retention_days: 7, fsync: true}
"""
    loaded = place.load(place.named(text))
    entry = loaded.entries["app:shell"]
    assert isinstance(entry, NativeEntry)
    assert entry.default_work_dir == Path("/srv/app")
    assert entry.default_env == {"LANG": "C.UTF-8", "ANSWER": "NO"}
    assert entry.command_whitelist == ("git status", "ls -la")
    assert (loaded.limits.time, loaded.limits.memory, loaded.limits.output_lines) == (10.0, 256 * MiB, 500)
    assert (loaded.limits.output_bytes, loaded.limits.file_size) == (512_000, 1536 * MiB)
    assert loaded.audit == config.AuditConfig(enabled=False, directory=place.home / "x", retention_days=7, fsync=True)
    assert loaded.notices == ()


def test_an_empty_file_and_empty_sections_change_nothing(place: Place) -> None:
    for text in ("", "# only a comment\n", "---\n", "limits:\npolicy:\nentries:\n", "{}", "\ufeffversion: 1.0\n"):
        loaded = place.load(place.named(text))
        assert (loaded.limits, loaded.policy, loaded.audit) == (
            place.load().limits,
            place.load().policy,
            place.load().audit,
        )


def test_an_empty_whitelist_allows_nothing_and_no_whitelist_is_told_apart(place: Place) -> None:
    listed = "{name: x, kind: exec.native, command_whitelist: []}, {name: y, kind: exec.native}"
    text = f"namespace: a\nentries: [{listed}]\n"
    entries = place.load(place.named(text)).entries
    assert entries["a:x"].command_whitelist == ()
    assert entries["a:y"].command_whitelist is None


def test_relative_paths_are_relative_to_the_file(place: Place) -> None:
    text = "namespace: a\nentries: [{name: x, kind: exec.native, default_work_dir: ../srv}]\naudit: {directory: log}\n"
    loaded = place.load(place.named(text), cwd=Path("/"))
    entry = loaded.entries["a:x"]
    assert isinstance(entry, NativeEntry)
    assert entry.default_work_dir == place.home.parent / "srv"
    assert loaded.audit.directory == place.home / "log"


def test_a_users_rule_becomes_part_of_the_policy(place: Place) -> None:
    loaded = place.load(place.named(RULE + "  decisions: {app.no-deploy: prompt}\n"))
    assert {rule.id: rule.decision for rule in loaded.policy.load().rules}["app.no-deploy"] is Decision.PROMPT


def test_a_decision_about_a_rule_of_another_pack_waits_for_that_pack(place: Place) -> None:
    standard = {rule.id for rule in load_policy("standard").rules}
    other = next(rule for rule in load_policy("core").rules if rule.id not in standard)
    loaded = place.load(place.named(f"policy: {{decisions: {{{other.id}: prompt}}}}"))
    assert other.id not in {rule.id for rule in loaded.policy.load().rules}
    assert {rule.id: rule.decision for rule in loaded.policy.load("core").rules}[other.id] is Decision.PROMPT


# What is wrong, and how it is said


MISTAKES = {
    "limits:\n  tiem: 3": (2, 3, "limits.tiem", "unknown key 'tiem' | did you mean 'time'?"),
    "plicy: {}": (1, 1, "plicy", "unknown key 'plicy' | did you mean 'policy'?"),
    "zzz: 1": (
        1,
        1,
        "zzz",
        "approval, audit, cluster, docker, entries, jail, languages, limits, log, namespace, network, policy, server, "
        "sessions, version",
    ),
    "limits: {time: soon}": (1, 16, "limits.time", "expected a number, found the text 'soon'"),
    "limits: {time: true}": (1, 16, "limits.time", "expected a number, found true"),
    "limits: {time: 1:30}": (1, 16, "limits.time", "expected a number, found the text '1:30'"),
    "limits: {time: .nan}": (1, 16, "limits.time", "expected a number, found the text '.nan'"),
    "limits: {time: -1}": (1, 10, "limits.time", "a limit is a positive number"),
    "limits: {time: 1e999}": (1, 10, "limits.time", "a limit is a positive number"),
    "limits: {time: }": (1, 16, "limits.time", "expected a number, found nothing"),
    "limits: {processes: 0}": (1, 10, "limits.processes", "a limit is a positive number"),
    "limits: {processes: 1.5}": (1, 21, "limits.processes", "expected a whole number, found the number 1.5"),
    "limits: {processes: 1_000}": (1, 21, "limits.processes", "expected a whole number, found the text '1_000'"),
    "limits: {processes: 010}": (1, 21, "limits.processes", "expected a whole number, found the text '010'"),
    "limits: {processes: 5KB}": (1, 21, "limits.processes", "expected a whole number, found the text '5KB'"),
    "limits: {memory: lots}": (1, 18, "limits.memory", 'a size such as "256MiB", found the text'),
    "limits: [1]": (1, 9, "limits", "expected a mapping of keys to values, found a list"),
    "text": (1, 1, "", "expected a mapping of keys to values, found the text 'text'"),
    "[1]": (1, 2, "entries[0]", "expected a mapping of keys to values, found the number 1"),
    "version: 2.0": (1, 10, "version", "expected '1.0', found the number 2.0"),
    "namespace: 5": (1, 12, "namespace", 'expected text, found the number 5 | put it in quotes: "5"'),
    "namespace: 'a:b'": (1, 12, "namespace", "expected a name of letters"),
    "audit: {enabled: on}": (1, 18, "audit.enabled", "expected true or false, found the text 'on'"),
    "audit: {retention_days: 0}": (1, 25, "audit.retention_days", "expected a number from 1 to 36500"),
    "audit: {directory: ~root/x}": (1, 20, "audit.directory", "below your own `~`"),
    "policy: {pack: strct}": (1, 10, "policy.pack", "there is no pack 'strct' | did you mean 'strict'?"),
    "policy: {decisions: {no.such-rule: allow}}": (1, 22, "policy.decisions.no.such-rule", "there is no rule"),
    "policy: {decisions: {x: perhaps}}": (1, 25, "policy.decisions.x", "expected one of allow, prompt, forbid"),
    "entries: 5": (1, 10, "entries", "expected a list, found the number 5"),
    "entries: [{name: x, kind: exec.native}]": (1, 1, "entries", "entries need a namespace"),
    "namespace: a\nentries: [{name: x}]": (2, 11, "entries[0]", "the key 'kind' is missing"),
    "namespace: a\nentries: [{kind: exec.native}]": (2, 11, "entries[0]", "the key 'name' is missing"),
    "namespace: a\nentries: [{name: x, kind: exec.nativ}]": (2, 27, "entries[0].kind", "did you mean 'exec.native'?"),
    "namespace: a\nentries: [{name: x, kind: exec.native, imge: y}]": (2, 40, "entries[0].imge", "unknown key 'imge'"),
    "namespace: a\nentries: [{name: x, kind: exec.native, default_env: {A-B: y}}]": (
        2,
        54,
        "entries[0].default_env.A-B",
        "can't be set",
    ),
    "namespace: a\nentries: [{name: x, kind: exec.native, default_env: {A: 1}}]": (
        2,
        57,
        "entries[0].default_env.A",
        'put it in quotes: "1"',
    ),
    "namespace: a\nentries: [{name: x, kind: exec.native}, {name: x, kind: exec.native}]": (
        2,
        41,
        "entries[1]",
        "there is already an entry 'a:x'",
    ),
    'namespace: a\nentries: [{name: x, kind: exec.native, command_whitelist: [ls, "echo \'x"]}]': (
        2,
        64,
        "entries[0].command_whitelist[1]",
        "it can't be split into words (No closing quotation) | close every quote",
    ),
    "namespace: a\nentries: [{name: x, kind: exec.native, command_whitelist: ['a\\']}]": (
        2,
        60,
        "entries[0].command_whitelist[0]",
        "it can't be split into words (No escaped character)",
    ),
    "namespace: a\nentries: [{name: x, kind: exec.native, command_whitelist: [' ']}]": (
        2,
        60,
        "entries[0].command_whitelist[0]",
        "it holds no command",
    ),
    "namespace: a\nentries: [{name: *a, kind: exec.native}]": (2, 18, "", "aliases are not accepted"),
    "policy: {rules: [{id: a.b, decision: *a, reason: x, command: [y]}]}": (1, 38, "", "aliases are not accepted"),
    "policy: {rules: [~]}": (1, 18, "policy.rules[0]", "expected a mapping of keys to values, found nothing"),
    "audit: {fsync: true}\naudit: {fsync: false}": (2, 1, "", "the key 'audit' is already on line 1"),
    "limits: &a {time: 1}": (1, 9, "", "anchors are not accepted"),
    "limits: !!python/object:os.system {}": (1, 9, "", "is not accepted"),
    "version: '1.0'\n---\nversion: '1.0'": (2, 1, "", "there is a second document"),
    "limits: {time: 1": (2, 1, "", "it is not valid YAML"),
    "a: b: c": (1, 5, "", "it is not valid YAML"),
    "? [1]\n: 2": (1, 3, "", "a key is not plain text"),
    "[" * 5000: (1, 22, "", "nested too deeply"),
    "a: [" + "x, " * 30000 + "]": (1, 59996, "", "too large"),
    "a: \x1b[2J": (1, 4, "", "invisible character '\\x1b'"),
    "a: x\n# \u202e": (2, 3, "", "invisible character '\\u202e'"),
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:40])
def test_a_mistake_is_named_with_its_line_column_key_and_remedy(place: Place, text: str) -> None:
    line, column, key, message = MISTAKES[text]
    found = problems(place, text)
    assert (line, column, key) in [each[:3] for each in found]
    assert message in next(each[3] for each in found if each[:3] == (line, column, key))
    with pytest.raises(ConfigError) as raised:
        place.load(place.named(text))
    assert "Next: " in str(raised.value)


def test_an_alias_bomb_is_refused_without_being_expanded(place: Place) -> None:
    bomb = "a: &a [x]\n" + "".join(
        f"{b}: &{b} [*{a},*{a},*{a}]\n" for a, b in zip("abcdefghij", "bcdefghijk", strict=True)
    )
    assert any("aliases are not accepted" in each[3] for each in problems(place, bomb))


def test_bytes_that_are_not_utf8_are_named_by_place(place: Place) -> None:
    assert problems(place, b"limits: {}\nx: \xff\xfe")[0][:2] == (2, 4)


def test_a_file_over_a_megabyte_is_refused(place: Place) -> None:
    assert "larger than" in problems(place, b"#" * 1_000_001)[0][3]
    assert problems(place, b"#" * 1_000_000) == []


def test_all_mistakes_of_a_file_are_reported_in_order(place: Place) -> None:
    found = problems(place, "limits: {tiem: 1, memory: x}\naudit: {enabled: 5}\nentries: {}\nfoo: 1\n")
    assert [each[0] for each in found] == [1, 1, 2, 3, 4]
    with pytest.raises(InvalidFile, match=r"4 more: `redoma config check`"):
        place.load(place.named("limits: {tiem: 1, memory: x}\naudit: {enabled: 5}\nentries: {}\nfoo: 1\n"))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('match: ["deploy --now"]', 'match: ["ls"]', 3, "'ls'"),
        ("command: [deploy]", "comand: [deploy]", 6, "did you mean 'command'?"),
        ("decision: forbid", "decision: never", 4, "expected one of allow, prompt, forbid"),
        ("      reason: deployments are done by hand\n", "", 3, "the key 'reason' is missing"),
        ("command: [deploy]", "command: deploy", 6, "expected a list, found the text 'deploy'"),
        ("command: [deploy]", "pattern: '('", 3, "RE2"),
    ],
)
def test_a_rule_that_cannot_work_is_named_with_its_line(
    place: Place, old: str, new: str, line: int, message: str
) -> None:
    text = RULE.replace(old, new)
    assert text != RULE
    found = problems(place, text)
    assert any(each[0] == line and message in each[3] for each in found), found


def test_a_rule_may_not_take_the_id_of_a_built_in_rule_of_any_pack(place: Place) -> None:
    taken = load_policy("core").rules[-1].id
    assert any(each[0] == 3 and taken in each[3] for each in problems(place, RULE.replace("app.no-deploy", taken)))


def test_names_in_a_file_reach_messages_without_control_characters(place: Place) -> None:
    (problem,) = config.check(place.named('"\\e[2Jx": 1'), env=place.env)
    assert "\x1b" not in problem.where + problem.message + problem.hint


@pytest.mark.parametrize("field", ["id", "reason", "suggestion"])
def test_what_a_rule_says_to_people_holds_no_control_characters(place: Place, field: str) -> None:
    texts = {"id": "app.x", "reason": "|\n        two\n        lines", "suggestion": "é"}
    rule = "policy:\n  rules:\n    - decision: forbid\n      command: [deploy]\n"
    assert problems(place, rule + "".join(f"      {key}: {text}\n" for key, text in texts.items())) == []
    texts[field] = '"a\\e[2J\\r"'
    (found,) = problems(place, rule + "".join(f"      {key}: {text}\n" for key, text in texts.items()))
    assert found[2:] == (f"policy.rules[0].{field}", "it holds characters that can't be seen | write it in plain text")


# Which file is read


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_not_a_regular_file_is_refused_without_waiting_for_it(place: Place, make: object) -> None:
    assert callable(make)
    make(place.project_file)
    with pytest.raises(ConfigError, match="not a regular file"):
        place.load()


def test_a_dangling_or_circular_link_is_an_error_and_not_the_absence_of_a_file(place: Place) -> None:
    place.project_file.symlink_to("nowhere")
    with pytest.raises(ConfigError, match="can't be read"):
        place.load()
    place.project_file.unlink()
    place.project_file.symlink_to("redoma.yaml")
    with pytest.raises(ConfigError, match="can't be read"):
        place.load()


def test_an_unreadable_file_is_an_error() -> None:
    with unprivileged() as root:
        place = Place(root)
        place.project_file.write_text("limits: {time: 5}\n")
        place.project_file.chmod(0)
        with pytest.raises(ConfigError, match="Permission denied"):
            place.load()


def test_a_named_file_that_does_not_exist_is_an_error(place: Place) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        place.load(place.home / "absent.yaml")
    with pytest.raises(ConfigError, match="can't be read"):
        place.load(Path("a\0b"))


def test_a_user_file_that_others_can_write_is_refused(place: Place) -> None:
    place.user("limits: {time: 60}\n")
    place.user_file.chmod(0o666)
    with pytest.raises(ConfigError, match="other users can change it"):
        place.load()


def test_later_files_win_and_every_value_says_where_it_came_from(place: Place) -> None:
    place.user("limits:\n  time: 20\n  processes: 50\n  open_files: 200\n")
    place.project_file.write_text("limits:\n  processes: 40\n  open_files: 100\n")
    named = place.named("\n\nlimits: {open_files: 300}\n")
    loaded = place.load(named)
    assert (loaded.limits.time, loaded.limits.processes, loaded.limits.open_files) == (20, 40, 300)
    origins = {key: origin for key, _, origin in config.describe(loaded)}
    assert origins["limits.time"] == f"user file {place.user_file}:2"
    assert origins["limits.processes"] == f"project file {place.project_file}:2"
    assert origins["limits.open_files"] == f"--config {named}:3"
    assert origins["limits.memory"] == "default"
    assert set(origins) == set(loaded.origins)


def test_rules_of_all_files_are_joined_and_a_contradiction_names_both_places(place: Place) -> None:
    place.user(RULE)
    same = place.named(RULE)
    assert [rule.id for rule in place.load(same).policy.rules] == ["app.no-deploy"]
    different = place.named("\n" + RULE.replace("by hand", "by robots"))
    with pytest.raises(ConfigError) as raised:
        place.load(different)
    assert f"{different}:4:7" in str(raised.value)
    assert f"user file {place.user_file}:3" in str(raised.value)


def test_description_is_plain_data(place: Place) -> None:
    described = {key: value for key, value, _ in config.describe(place.load(place.named(RULE)))}
    assert described["policy.rules.app.no-deploy"]["decision"] == "forbid"
    assert described["audit.directory"] == str(place.home / ".local/state/redoma/audit")
    assert described["limits.time"] == 30.0


def test_the_nearest_project_file_upwards_is_found_up_to_the_home_directory(place: Place) -> None:
    deep = place.project / "a" / "b"
    deep.mkdir(parents=True)
    assert config.project_file(deep, place.env) is None
    (place.home.parent / "redoma.yaml").write_text("")  # above the home directory
    assert config.project_file(deep, place.env) is None
    (place.home / "redoma.yaml").write_text("")
    assert config.project_file(deep, place.env) == place.home / "redoma.yaml"
    place.project_file.write_text("")
    assert config.project_file(deep, place.env) == place.project_file


def test_the_users_own_file_is_not_taken_for_a_project_file(place: Place) -> None:
    place.user("limits: {time: 60}\n")
    assert config.project_file(place.user_file.parent, place.env) is None
    assert place.load(cwd=place.user_file.parent).origins["limits.time"].startswith("user file")


def test_a_file_that_is_found_and_also_named_counts_once_and_is_trusted(place: Place) -> None:
    place.project_file.write_text("limits: {time: 60}\n")
    loaded = place.load(place.project_file)
    assert loaded.limits.time == 60
    assert loaded.notices == ()


def test_a_deleted_current_directory_has_no_project(place: Place) -> None:
    gone = place.home / "gone"
    assert place.load(cwd=gone).limits.time == 30


def test_the_state_directory_follows_the_environment_but_never_a_relative_path(place: Place) -> None:
    home = place.home / ".local/state/redoma"
    assert config.state_directory(place.env) == home
    assert config.state_directory({**place.env, "XDG_STATE_HOME": "/s"}) == Path("/s/redoma")
    assert config.state_directory({**place.env, "XDG_STATE_HOME": "here"}) == home
    assert config.state_directory({**place.env, "REDOMA_STATE_DIR": "/own"}) == Path("/own")
    for broken in ({"REDOMA_STATE_DIR": "here"}, {"HOME": "."}):
        with pytest.raises(ConfigError):
            config.state_directory(broken)


def test_without_a_file_neither_yaml_nor_the_policy_engine_is_loaded(place: Place) -> None:
    script = (
        "import sys, redoma.config\nredoma.config.load()\n"
        "sys.exit(any(name in sys.modules for name in ('yaml', 'redoma.policy', 'redoma.config.schema')))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=place.project, env=place.env, check=False).returncode == 0


# Hostile content


_PIECES = st.sampled_from(
    [*MISTAKES, *"-:{}[]'\"\\|>#%~1é\n\t\0", "  ", "---", "&a ", "*a", "!!str ", "<<", "9" * 30, RULE]
)
_SPOILED = st.sampled_from(
    [
        "*a",
        "&a x",
        "!t x",
        "~",
        "''",
        "5",
        "[]",
        "{}",
        "[*a]",
        "[~]",
        "{*a : 1}",
        "{<<: *a}",
        '"echo \'x"',
        "'\\'",
        '"\\0"',
    ]
)


def spoiled(valid: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """What belongs there, or something that doesn't."""
    return st.one_of(valid, valid, valid, _SPOILED)


def leaf(*valid: str) -> st.SearchStrategy[str]:
    return spoiled(st.sampled_from(valid))


def listed(item: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return spoiled(st.lists(item, max_size=3).map(lambda items: f"[{', '.join(items)}]"))


def mapped(required: dict[str, st.SearchStrategy[str]], **optional: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.fixed_dictionaries(required, optional=optional)
    return spoiled(pairs.map(lambda values: "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"))


_FILES = mapped(
    {"namespace": leaf("a")},
    entries=listed(
        mapped(
            {"name": leaf("x", "y"), "kind": leaf("exec.native", "exec.jail", "exec.docker", "exec.monty")},
            image=leaf("x"),
            volumes=listed(leaf("/a:/b", "a:/b:ro")),
            tmpfs=mapped({}, **{"/t": leaf("''")}),
            cap_add=listed(leaf("ALL")),
            memory_limit=leaf("64MiB"),
            limits=mapped({}, time=leaf("3")),
            caller_env=listed(leaf("A")),
            default_work_dir=leaf("/srv"),
            default_env=mapped({}, A=leaf("b")),
            command_whitelist=listed(leaf("ls", "'ls -l'")),
        )
    ),
    policy=mapped(
        {},
        pack=leaf("strict"),
        rules=listed(
            mapped(
                {"id": leaf("app.a", "app.b"), "decision": leaf("forbid"), "reason": leaf("r")},
                command=listed(leaf("deploy")),
                match=listed(leaf("deploy")),
            )
        ),
        decisions=mapped({}, **{"app.a": leaf("prompt")}),
    ),
    limits=mapped({}, time=leaf("3"), memory=leaf("1MiB")),
    audit=mapped({}, enabled=leaf("true"), directory=leaf("~/x"), retention_days=leaf("3")),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200), st.lists(_PIECES, max_size=8).map("".join), _FILES))
def test_no_content_gives_anything_but_a_configuration_or_a_config_error(place: Place, content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    file = place.named(data)
    found = config.check(file, env=place.env)
    try:
        loaded = place.load(file)
    except ConfigError:
        assert found
    else:
        assert found == []
        for entry in loaded.entries.values():
            assert all(shlex.split(command) for command in entry.command_whitelist or ())
