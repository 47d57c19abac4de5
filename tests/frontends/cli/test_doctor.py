"""`redoma doctor`, as a person reads it: here, and where something is missing for real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redoma

Command = Callable[..., subprocess.CompletedProcess[str]]

SOMEBODY = 65534
LIBRARIES = [str(Path(redoma.__file__).parents[1]), str(Path(msgspec.__file__).parents[1])]
MAIN = """
import sys
sys.path[:0] = {libraries!r}
{preamble}
from redoma.frontends.cli import main
sys.argv = ["redoma", *{arguments!r}]
sys.exit(main())
"""
NO_USER_NAMESPACES = """
import os
from redoma.backends import linux
from redoma.backends.jail.root import enter_user_namespace
enter_user_namespace(0)
with open("/proc/sys/user/max_user_namespaces", "w") as limit:
    limit.write("0")
"""
NO_MONTY = "sys.modules['pydantic_monty'] = None"
NO_JAIL_LINES = (
    "✗ user namespaces  user.max_user_namespaces is 0\n"
    "    costs: the jail doesn't work, and what is built on it could not be tried\n"
    "    fix:\n"
)


def doctor(*arguments: str, preamble: str = "", home: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    return somebody("doctor", *arguments, preamble=preamble, home=home)


def somebody(*arguments: str, preamble: str = "", home: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    """As an unprivileged user, with the system's interpreter where this one can't be reached by others."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, "check": False, "cwd": "/"}
    options["env"] = {"HOME": home, "MONTY_BIN": str(Path(sys.executable).with_name("monty"))}
    python = sys.executable
    if os.getuid() == 0:
        options |= {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []}
        if not reachable(python):
            python = shutil.which(f"python3.{sys.version_info.minor}", path=os.defpath) or python
    if not reachable(python):
        pytest.skip(f"no Python 3.{sys.version_info.minor} that an unprivileged user can start")
    script = MAIN.format(libraries=LIBRARIES, preamble=preamble, arguments=arguments)
    done: subprocess.CompletedProcess[str] = subprocess.run([python, "-I", "-c", script], **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def reachable(python: str) -> bool:
    parents = Path(python).resolve().parents
    return os.getuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in parents)


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_this_host_can_have_the_jail(redoma_command: Command, nothing_left_behind: None) -> None:
    for done in (redoma_command("doctor", "--json"), doctor("--json")):
        report = answer(done)
        assert done.returncode == 0
        assert report["auto"] == "jail"
        backends = {backend["name"]: backend for backend in report["backends"]}
        assert backends["jail"]["works"]
        assert backends["jail"]["isolates"]
        assert not backends["native"]["isolates"]
        assert {"user namespaces", "/proc", "seccomp", "cgroup"} <= {fact["name"] for fact in report["host"]}
        for fact in report["host"]:
            assert fact.keys() == {"name", "state", "what", "costs", "fix"}
            assert bool(fact["costs"]) == bool(fact["fix"]) == (fact["state"] != "ok")


def test_what_is_read_is_what_the_json_says(redoma_command: Command) -> None:
    facts = answer(redoma_command("doctor", "--json"))["host"]
    lines = redoma_command("doctor").stdout.partition("\nthis host\n")[2].splitlines()
    for fact in facts:
        mark = {"ok": "✓", "degraded": "!", "missing": "✗"}[fact["state"]]
        assert [line for line in lines if line.startswith(f"{mark} {fact['name']} ") and line.endswith(fact["what"])]


def test_a_backend_without_a_boundary_is_not_marked_as_fine(redoma_command: Command) -> None:
    text = redoma_command("doctor").stdout
    assert "\n✓ jail\n" in text
    assert "\n! native\n" in text


def test_what_is_missing_is_told_with_its_cost_and_the_command_that_fixes_it() -> None:
    done = doctor(preamble=NO_USER_NAMESPACES)
    assert "\n✗ jail\n    it needs what is missing here: user namespaces\n" in done.stdout
    assert NO_JAIL_LINES in done.stdout
    fix = done.stdout.partition(NO_JAIL_LINES)[2].splitlines()
    assert any(line.startswith("        ") and "user.max_user_namespaces = 15000" in line for line in fix)


def test_what_this_kernel_is_too_old_for_is_told_among_the_facts() -> None:
    old = "import platform; platform.release = lambda: '5.13.0'"
    without = "exceeding the limit on processes ends the run instead of failing the fork"
    lines = (
        "! kernel           Linux 5.13.0, without processes counted by user namespace\n"
        f"    costs: {without}\n    fix:\n        # boot Linux 5.14 or later\n"
    )
    done = doctor(preamble=old)
    assert done.returncode == 0
    assert "\n✓ jail\n" in done.stdout
    assert lines in done.stdout
    kernel = next(fact for fact in answer(doctor("--json", preamble=old))["host"] if fact["name"] == "kernel")
    assert (kernel["state"], kernel["costs"]) == ("degraded", without)


def test_the_next_backend_is_chosen_where_the_jail_can_not_be_had() -> None:
    done = doctor("--json", preamble=NO_USER_NAMESPACES)
    assert done.returncode == 0
    assert answer(done)["auto"] == "monty"


def test_monty_has_no_cells_around_it_where_the_jail_can_not_be_had() -> None:
    report = answer(doctor("--json", preamble=NO_USER_NAMESPACES))
    layers = {backend["name"]: backend.get("layers") for backend in report["backends"]}["monty"]
    assert layers["filesystem"] == "virtual, in memory"
    assert "mount" not in layers


def test_a_monty_whose_program_does_not_start_is_not_marked_as_working(
    redoma_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "monty"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    for broken, why in ((program, "Exec format error"), (tmp_path / "none", "No such file"), (Path("/bin/false"), "1")):
        monkeypatch.setenv("MONTY_BIN", str(broken))
        report = answer(redoma_command("doctor", "--json"))
        assert not next(each for each in report["backends"] if each["name"] == "monty")["works"]
        fact = next(fact for fact in report["host"] if fact["name"] == "monty")
        assert fact["state"] == "missing"
        assert why in fact["what"]


@pytest.fixture
def home() -> Iterator[str]:
    """The unprivileged user's, where nobody keeps it from going."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)  # noqa: S103
        yield place


def test_a_run_says_why_it_was_not_in_the_jail(home: str) -> None:
    done = somebody("run", "print(6 * 7)", preamble=NO_USER_NAMESPACES, home=home)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert "redoma: backend: it ran on monty, because jail could not run it: " in done.stderr
    assert "No space left on device" in done.stderr  # what the kernel answers where no namespace may be made
    shown = answer(somebody("run", "--json", "print(6 * 7)", preamble=NO_USER_NAMESPACES, home=home))
    assert (shown["backend"], list(shown["passed_over"])) == ("monty", ["jail", "docker"])


def test_where_nothing_can_run_it_every_backend_says_why(home: str) -> None:
    done = somebody("run", "--lang", "bash", "echo hello", preamble=NO_USER_NAMESPACES, home=home)
    assert (done.returncode, done.stdout) == (125, "")
    refused, *lines = done.stderr.splitlines()
    for why in (
        "jail (make a mount namespace: No space left",
        "docker (no DOCKER_HOST, ",
        "monty (it doesn't offer bash",
    ):
        assert why in refused
    assert lines == [
        "works here as it is:   `--backend lean`, weaker than the jail; `jail: {lean: true}` in redoma.yaml "
        "makes it the default",
        "one change would add:  the jail: what `redoma doctor` prints under `user namespaces` "
        "(user.max_user_namespaces is 0)",
    ]


@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=["text", "json"])
def test_exit_status_1_where_nothing_isolates(arguments: tuple[str, ...]) -> None:
    done = doctor(*arguments, preamble=NO_USER_NAMESPACES + NO_MONTY)
    assert done.returncode == 1
    if not arguments:
        assert "\nauto    nothing here isolates\n" in done.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a home that this user can't enter")
@pytest.mark.parametrize("where", ["project", "settings/redoma"])
def test_a_configuration_that_can_not_be_used_is_one_finding_among_others(
    redoma_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    for name in ("project", "settings/redoma"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / where / "redoma.yaml").write_text("limits: {tme: 3}\n")
    done = redoma_command("doctor", cwd=tmp_path / "project")
    assert (done.returncode, done.stderr) == (1, "")
    assert "auto    jail\n" in done.stdout
    assert f"config  ✗ {tmp_path}/{where}/redoma.yaml:1:10: limits.tme: unknown key 'tme'\n" in done.stdout
    assert "→ did you mean 'time'?" in done.stdout
    report = json.loads(redoma_command("doctor", "--json", cwd=tmp_path / "project").stdout)
    assert (report["auto"], report["configuration"]["next"]) == ("jail", "did you mean 'time'?")
    (tmp_path / where / "redoma.yaml").write_text("limits: {time: 3}\n")
    assert "config  " not in redoma_command("doctor", cwd=tmp_path / "project").stdout


def test_a_record_that_can_not_be_read_is_one_finding_among_others(tmp_path: Path) -> None:
    (tmp_path / ".local" / "state" / "redoma" / "audit").mkdir(parents=True)
    tmp_path.chmod(0o700)
    done = doctor("--json", home=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Permission denied" in answer(done)["audit"]["state"]


def test_optional_parts_that_are_not_installed_are_listed_with_how_to_install_them() -> None:
    preamble = (
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'h11' else f(n, *a)"
    )
    told = doctor(preamble=preamble).stdout
    assert "optional parts that are not installed" in told
    assert "install 'redoma[network]'" in told
    assert json.loads(doctor("--json", preamble=preamble).stdout)["extras"][0]["name"] == "network"


def test_every_optional_part_is_known_to_it() -> None:
    from redoma.frontends.cli.doctor import _EXTRAS

    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert set(_EXTRAS) | {"all"} == set(declared["optional-dependencies"])
