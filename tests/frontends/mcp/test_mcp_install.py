"""The configuration of clients: shown first, written only with a yes, and nothing else in the file is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
FILES = {
    "claude-code": (".mcp.json", "mcpServers"),
    "cursor": ("~/.cursor/mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
}
PROGRAM = str(Path(sys.executable).with_name("redoma"))


@pytest.mark.parametrize("client", sorted(FILES))
def test_a_client_is_told_how_to_start_the_server(client: str, redoma: Call, tmp_path: Path) -> None:
    name, section = FILES[client]
    path = Path(name).expanduser()
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"theme": "é", section: {"other": {"command": "x"}}}))
    status, shown, _ = redoma("mcp", "install", client, "--yes", "--project", str(tmp_path))
    assert status == 0
    assert '"--project"' in shown
    written = json.loads(path.read_text())
    entry = written[section]["redoma"]
    assert entry["args"] == ["mcp", "--project", str(tmp_path)]
    assert entry.get("type") == ("stdio" if client == "vscode" else None)
    assert subprocess.run([entry["command"], "--version"], check=True, capture_output=True).stdout
    assert (written["theme"], written[section]["other"]) == ("é", {"command": "x"})
    assert "has it already" in redoma("mcp", "install", client, "--yes", "--project", str(tmp_path))[2]


def test_codex_gets_a_table_and_keeps_its_comments(redoma: Call) -> None:
    path = Path("~/.codex/config.toml").expanduser()
    path.parent.mkdir()
    path.write_text('# mine\nmodel = "x"')
    assert redoma("mcp", "install", "codex", "--yes")[0] == 0
    assert path.read_text().startswith('# mine\nmodel = "x"\n')
    assert tomllib.loads(path.read_text())["mcp_servers"]["redoma"]["args"] == ["mcp"]
    path.write_text('[mcp_servers.redoma]\ncommand = "mine"\n')
    status, _, said = redoma("mcp", "install", "codex", "--yes")
    assert (status, path.read_text()) == (125, '[mcp_servers.redoma]\ncommand = "mine"\n')
    assert "by hand" in said


def test_nothing_is_written_without_a_yes_nor_over_what_cannot_be_read(redoma: Call) -> None:
    refused = subprocess.run(
        [PROGRAM, "mcp", "install", "claude-code"], input="n\n", capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert '"mcpServers"' in refused.stdout
    assert not Path(".mcp.json").exists()
    unanswered = subprocess.run(
        [PROGRAM, "mcp", "install", "claude-code"], input="", capture_output=True, text=True, check=False
    )
    assert unanswered.returncode == 2
    assert unanswered.stderr.endswith("next: add --yes to write it without a question\n")
    assert not Path(".mcp.json").exists()
    Path(".mcp.json").write_text("{ // comments\n}")
    assert redoma("mcp", "install", "claude-code", "--yes")[0] == 125
    assert Path(".mcp.json").read_text() == "{ // comments\n}"


def test_a_client_finds_the_server_outside_of_the_shell_that_has_activated_its_environment(
    redoma: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(PROGRAM).parent), prepend=":")
    assert redoma("mcp", "install", "claude-code", "--yes")[0] == 0
    entry = json.loads(Path(".mcp.json").read_text())["mcpServers"]["redoma"]
    started = subprocess.run([entry["command"], "--version"], env={"PATH": "/usr/bin:/bin"}, check=False)
    assert started.returncode == 0


@pytest.mark.parametrize(
    ("command", "package"),
    [(("mcp",), "mcp"), (("mcp", "install", "claude-code", "--yes"), "mcp"), (("kernel", "install"), "ipykernel")],
)
def test_what_is_not_installed_is_named(
    command: tuple[str, ...], package: str, redoma: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("redoma.frontends.mcp", "redoma.integrations"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    status, _, said = redoma(*command)
    assert status == 125
    assert f"this needs the package {package}" in said
    assert "install 'redoma[" in said
    assert not Path(".mcp.json").exists()
