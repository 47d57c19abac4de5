"""Which files a request would execute, as its words tell: through wrappers, in texts, after `cd`; or don't."""

from __future__ import annotations

import posixpath

import pytest

from redoma.models import Request
from redoma.policy.executed import Executes, executes, placed


def of_script(code: str) -> Executes:
    return executes(Request(code=code, language="bash"))


def of_words(*words: str) -> Executes:
    return executes(Request(argv=words, language="command"))


def paths(found: Executes) -> set[str]:
    return {posixpath.normpath(placed(fact, fact.path)) for fact in found.files}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("./helper.sh a b", {"helper.sh"}),
        ("source lib.sh; . ./other.sh", {"lib.sh", "other.sh"}),
        ("cd jobs; ./x.sh; bash -c ./y; (cd in && ./z); ./w", {"jobs/x.sh", "jobs/y", "jobs/in/z", "jobs/w"}),
        ("cd a || exit 1\n./b", {"a/b"}),
        ("cd a; eval ./b; trap ./c EXIT", {"a/b"}),
        ("f() { ./x.sh; }; f", {"x.sh"}),
        ("d=jobs; bash $d/x.sh", {"jobs/x.sh"}),
        ("for d in a b; do bash $d/x; done", {"a/x", "b/x"}),
        ("bash < x.sh; cd sub; python3 < y.py", {"x.sh", "sub/y.py"}),
        ("cat <<E | xargs -n 1 ./x.sh\n1\nE", {"x.sh"}),
        ("sudo -u ana nice -n 5 timeout 9 env A=1 ./x", {"x"}),
        ("env -C jobs ./x", {"jobs/x"}),
        ("find . -name '*.log' -exec ./h.sh {} \\;", {"h.sh"}),
        ("perl x.pl; node s.js; awk -f p.awk data; ruby -w r.rb", {"x.pl", "s.js", "p.awk", "r.rb"}),
        ("python3 -u report.py data.csv", {"report.py"}),
        ("python3 -c 'import subprocess; subprocess.run([\"./x.sh\"])'", {"x.sh"}),
        ("bash --rcfile start.sh -i", {"start.sh"}),
        ("make -f other.mk; make -C sub -f a.mk; just -f j", {"other.mk", "sub/a.mk", "j"}),
        ("make all", {"GNUmakefile", "makefile", "Makefile"}),
        ("ansible-playbook site.yml", {"site.yml"}),
        ("~/bin/x; $HOME/y", {"~/bin/x", "~/y"}),
        ("/opt/tool/run --config etc/x.conf < data > out", {"/opt/tool/run"}),
        ("cat app.log; grep x ./data.csv; cp ./a ./b; ls ./dir", set()),
        ("ssh host ./x.sh; docker run image ./y.sh", set()),
    ],
)
def test_what_it_executes_is_told_by_its_words(code: str, expected: set[str]) -> None:
    assert paths(of_script(code)) >= expected
    assert {path for path in paths(of_script(code)) if not path.startswith("-")} == expected


@pytest.mark.parametrize(
    "code",
    [
        'bash "$1"',
        "$cmd x",
        "for f in jobs/*.sh; do bash $f; done",
        "./run-*.sh",
        "find . -name x.sh -exec bash {} \\;",
        "find jobs -exec {} \\;",
        "xargs bash < list",
        'cd "$1"; ./x.sh',
        "f() { cd a; }; f; g() { ./x.sh; }; g",
        "chroot /mnt ./x.sh",
        "PATH=$TOOLS:$PATH; tool",
        "python3 -c 'import subprocess, sys; subprocess.run(sys.argv[1])'",
    ],
)
def test_files_that_nobody_can_name_beforehand_are_said_to_be_such(code: str) -> None:
    assert of_script(code).unbound


@pytest.mark.parametrize(
    "code",
    [
        "./x.sh",
        "cd jobs; ./x.sh",
        "cd jobs && . ./lib.sh && ./x.sh",
        "PATH=/opt/t/bin:$PATH tool",
        "ls | xargs rm",
    ],
)
def test_ordinary_scripts_are_known_whole(code: str) -> None:
    assert of_script(code).unbound == ()


def test_where_programs_are_looked_for_is_told() -> None:
    assert of_script("PATH=/opt/t/bin:$PATH tool").searched == ("/opt/t/bin",)
    assert of_words("env", "PATH=/x:/usr/bin", "tool").searched == ("/x:/usr/bin",)
    assert {"env", "tool"} <= set(of_words("env", "A=1", "tool").names)
    assert of_script("cd /; echo 1; true").names == ()


@pytest.mark.parametrize("code", ["make", 'eval "$x"', "curl x | sh", "perl -e 1"])
def test_what_may_execute_more_is_said(code: str) -> None:
    assert of_script(code).unbound


def test_what_is_fed_is_read_too() -> None:
    request = Request(argv=("bash",), language="command", stdin=b"cd sub\n./x.sh\n")
    assert paths(executes(request)) == {"sub/x.sh"}


def test_modules_of_python_are_looked_for_where_it_runs() -> None:
    (fact,) = of_words("python3", "-m", "jobs.report").files
    assert (fact.path, fact.how) == ("jobs.report", "module")
    assert executes(Request(code="import a.b\nfrom .c import d")).imported == ("a.b", ".c.d")


@pytest.mark.parametrize(
    "line",
    [
        "cpio --rsh-command=./hook.sh -F h:x -o",
        "install -s --strip-program=./hook.sh one two",
        "mawk -W exec hook.sh",
        "split --filt ./hook.sh one",
        "tar --use-comp ./hook.sh -cf x one",
        "tar cIf ./hook.sh x one",
        "ip vrf exec x ./hook.sh",
        "ip -batch hook.sh",
        "openssl engine ./hook.so",
        "openssl req -config x.cnf",
        "curl --engine ./x.so",
        "wget --config=x",
        "scp -F ssh.conf a b:",
        "mysqldump --defaults-file=x",
        "su -s ./hook.sh",
    ],
)
def test_an_option_that_runs_or_loads_a_file_makes_a_plain_program_opaque(line: str) -> None:
    found = executes(Request(code=line, language="bash"))
    assert line.split()[0] in found.opaque or found.unbound


@pytest.mark.parametrize(
    "code",
    [
        "import pydoc\npydoc.locate('hook')",
        "import sqlite3\nsqlite3.connect('a').load_extension('./x')",
        "import numpy\nnumpy.load('a', allow_pickle=True)",
        "import pexpect\npexpect.run('x')",
        "import unittest\nunittest.TestLoader().discover('.')",
    ],
)
def test_calls_that_run_files_by_name_leave_something_unbound(code: str) -> None:
    assert executes(Request(code=code, language="python")).unbound


def test_a_path_that_begins_with_two_slashes_is_that_with_one() -> None:
    assert "writes a file, and then runs it" in "".join(of_script("cp a /tmp/x; //tmp/x").unbound)
    assert paths(of_script("touch a; //usr/bin/other")) == {"//usr/bin/other"}  # once, this never ended


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("kill 1; bash -c 'kill 1'; su ana -c 'kill 1'", {"bash", "su"}),  # a builtin of the shell
        ("sudo kill 1; bash -c 'sudo kill 1'", {"sudo", "bash", "kill"}),
        ("python3 <<E\nimport os\nos.system('frob x')\nE", {"python3", "frob"}),
        ("echo 'import os; os.system(\"frob x\")' > x.py; python x.py", {"python", "frob"}),
        ('python3 -c \'import subprocess; subprocess.run(["kill", "1"])\'', {"python3", "kill"}),
        ("python3 -c 'import os; os.remove(\"x\")'", {"python3"}),  # no program does that
        ("python3 -m pip install x", {"python3"}),
    ],
)
def test_a_program_is_looked_for_where_no_builtin_or_module_is_run(code: str, expected: set[str]) -> None:
    assert set(of_script(code).names) - {"echo"} == expected
