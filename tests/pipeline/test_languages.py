"""JavaScript, and languages that the configuration names: on every backend, in sessions, and on the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pace import SLOW
from redoma import Config, Executor, InvalidRequest, Status
from redoma import config as configuration
from redoma.backends.docker.backend import DockerBackend
from redoma.config import InvalidFile, LanguageConfig

PERL = {"perl": LanguageConfig(argv=("perl", "-"), suffixes=(".pl",))}
MAIN = """
const {twice} = require('./lib');
let text = '';
process.stdin.on('data', data => text += data).on('end', () => {
  console.log(twice(21), process.argv.slice(2).join('+'), text, require.main === module);
});
"""
LIB = "exports.twice = x => 2 * x;\n"


@pytest.fixture
def executor(config: Config) -> Executor:
    return Executor(msgspec.structs.replace(config, languages=PERL))


@pytest.mark.parametrize("backend", ["jail", "lean", "native"])
def test_javascript_has_arguments_input_files_and_modules(executor: Executor, backend: str) -> None:
    with executor:
        result = executor.run(
            MAIN, "javascript", backend=backend, args=["a", "b"], stdin="in", files={"lib.js": LIB}, policy="none"
        )
        assert (result.status, result.stdout) == (Status.OK, "42 a+b in true\n"), result
        module = executor.run(
            "import {readdirSync} from 'fs'; console.log(await 1, readdirSync('.'))",
            "javascript",
            backend=backend,
            policy="none",
        )
        assert module.stdout == "1 []\n", module  # nothing of ours is in its directory


def test_how_javascript_ends(executor: Executor) -> None:
    with executor:
        thrown = executor.run("console.log('before'); throw new Error('boom')", "javascript")
        assert (thrown.status, thrown.exit_code, thrown.stdout) == (Status.ERROR, 1, "before\n")
        assert "Error: boom" in thrown.stderr
        assert executor.run("process.exit(7)", "javascript").exit_code == 7
        assert executor.run("while (true);", "javascript", timeout=1).status is Status.TIMEOUT
        greedy = "const all = []; for (;;) all.push(Buffer.alloc(1 << 24, 1))"
        assert executor.run(greedy, "javascript", memory="200MiB", timeout=60 * SLOW).status is Status.MEMORY


def test_threads_and_programs_of_javascript_work_in_a_cell(executor: Executor) -> None:
    code = """
const {Worker} = require('worker_threads');
new Worker("require('worker_threads').parentPort.postMessage(7)", {eval: true}).on('message', seven => {
  console.log(seven, require('child_process').execFileSync('echo', ['eight']).toString().trim());
});
"""
    with executor:
        assert executor.run(code, "javascript", timeout=30 * SLOW).stdout == "7 eight\n"


def test_a_language_of_the_configuration(executor: Executor) -> None:
    code = 'print "perl ", 6 * 7, " @ARGV ", <STDIN>;'
    with executor:
        result = executor.run(code, "perl", args=["a"], stdin="in")
        assert (result.status, result.stdout) == (Status.OK, "perl 42 a in")
        # Nobody can read it beforehand: on the host itself a person has to be asked, and nobody is there.
        refused = executor.run(code, "perl", backend="native")
        assert refused.status is Status.DENIED
        assert {finding.rule for finding in refused.evaluation.findings} == {"source.unread"}
        assert executor.run(code, "perl", policy="strict").status is Status.FORBIDDEN
        with pytest.raises(InvalidRequest, match="ruby"):
            executor.run("puts 1", "ruby")


def test_a_missing_interpreter_is_told_with_what_to_do(config: Config) -> None:
    languages = {"ruby": LanguageConfig(argv=("no-ruby", "-")), "javascript": LanguageConfig(argv=("/opt/no-node",))}
    with Executor(msgspec.structs.replace(config, languages=languages)) as executor:
        for language, program in (("ruby", "no-ruby"), ("javascript", "/opt/no-node")):
            result = executor.run("x", language)
            assert result.status is Status.ERROR
            assert f"could not start {program}" in (result.error or "")
            assert f"languages.{language}.argv" in (result.error or "")
        with executor.session() as session:
            assert "languages.ruby.argv" in (session.run("x", "ruby").error or "")


def test_languages_in_a_session(executor: Executor) -> None:
    with executor, executor.session() as session:
        session.javascript("require('fs').writeFileSync('a.txt', process.argv.slice(2).join())", args=["1", "2"])
        assert session.run("open('a.txt').read()").value == "1,2"
        assert session.run("print 6 * 7", "perl").stdout == "42"
        session.bash("mkdir -p below && cd below && export GREETING=hi")
        moved = session.javascript("console.log(process.cwd(), process.env.GREETING)")
        assert moved.stdout == "/workspace/below hi\n"
        assert session.javascript("while (true);", timeout=1).status is Status.TIMEOUT
        assert session.javascript("console.log(1)").stdout == "1\n"


def test_languages_in_containers(engine: str, config: Config) -> None:
    image = msgspec.structs.replace(config.docker, javascript=config.docker.python)
    with Executor(msgspec.structs.replace(config, languages=PERL, docker=image)) as executor:
        assert isinstance(executor.core.backends["docker"], DockerBackend)
        result = executor.run('print "perl @ARGV"', "perl", backend="docker", args=["a"], timeout=30 * SLOW)
        assert result.stdout == "perl a", result
        without = executor.run("console.log(1)", "javascript", backend="docker", timeout=30 * SLOW)
        assert "could not start node" in (without.error or "")  # that image has none


def test_a_run_is_replayed_with_the_same_interpreter(executor: Executor, config: Config) -> None:
    from redoma.audit import AuditLog
    from redoma.history.recorded import recorded

    with executor:
        result = executor.run("print 1", "perl")
    run = next(run for run in recorded(AuditLog(config.audit.directory).records()) if run.request.id == result.id)
    assert (run.request.language, run.request.interpreter) == ("perl", ("perl", "-"))


# --- the configuration ---


def test_a_project_may_not_name_programs_unless_it_is_trusted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    project = home / "app"
    project.mkdir(parents=True)
    (project / "redoma.yaml").write_text("languages: {javascript: {argv: [./evil, -]}}\n")
    found = configuration.load(cwd=project, env={"HOME": str(home)})
    assert found.languages == {}
    assert "names the program that runs javascript code" in found.notices[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("languages: {python: {argv: [python3]}}", "is built in"),
        ("languages: {Ruby: {argv: [ruby]}}", "can't be the name"),
        ("languages: {ruby: {suffixes: [.rb]}}", "has no program"),
        ("languages: {ruby: {argv: []}}", "has no program"),
        ("languages: {ruby: {argv: [ruby], suffixes: [rb]}}", "expected"),
    ],
)
def test_what_is_wrong_with_a_language_is_said(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "redoma.yaml"
    file.write_text(text)
    with pytest.raises(InvalidFile, match=why):
        configuration.load(file, env={"HOME": str(tmp_path)})


# --- the command line ---


def test_the_command_line_knows_languages_by_option_and_by_name(
    redoma: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "a.js").write_text("console.log(6 * 7, process.argv[2])\n")
    (tmp_path / "a.pl").write_text('print "perl @ARGV\\n";\n')
    (tmp_path / "c.yaml").write_text("languages: {perl: {argv: [perl, -], suffixes: [.pl]}}\n")
    named = ("--config", str(tmp_path / "c.yaml"))
    assert redoma("run", "--lang", "javascript", "console.log(6*7)")[:2] == (0, "42\n")
    assert redoma("run", str(tmp_path / "a.js"), "x")[:2] == (0, "42 x\n")
    assert redoma(*named, "run", str(tmp_path / "a.pl"), "x")[:2] == (0, "perl x\n")
    status, _, said = redoma("run", str(tmp_path / "a.pl"))
    assert (status, "is Perl" in said, "languages" in said) == (2, True, True)
    status, _, said = redoma("run", "--lang", "rubby", "x")
    assert (status, "javascript" in said) == (2, True)
    assert redoma("check", "--lang", "javascript", "require('child_process').exec(x)")[0] == 1
    assert redoma("check", "--lang", "javascript", "console.log(1")[:2] == (3, "")  # no verdict, as for Python and Bash
    assert redoma("policy", "explain", "--lang", "javascript", "eval(x)")[0] == 1
    assert redoma(*named, "check", "--lang", "perl", "print 1")[0] == 1


def test_a_script_says_its_language_in_its_first_line(
    tmp_path: Path, redoma_command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script = tmp_path / "tool"
    script.write_text("#!/usr/bin/env node\nconsole.log(1)\n")
    assert redoma_command("run", str(script)).stdout == "1\n"
