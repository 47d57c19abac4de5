"""What can't be bound can't be pinned, nor learned: a file that changes under a pin never runs without an alarm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from approval_job import EVIL, Job, found, job_with_scripts

from redoma import Status
from redoma.models import ExecutedFiles, Request
from redoma.pipeline.executed_files import find, visible_to

# Each: the command, and the file that it runs. "bash text": as a script.
ATTACKS: list[tuple[tuple[str, ...], str]] = [
    *(
        (("bash text", text), "hook.sh")
        for text in (
            "BASH_ENV=hook.sh bash -c true",
            "BASH_ENV=./hook.sh bash -c true",
            "export BASH_ENV=hook.sh; bash -c true",
            "BASH_ENV=hook.sh; export BASH_ENV; bash -c true",
            "declare -n x=BASH_ENV; x=hook.sh; export BASH_ENV; bash -c true",
            "read -r BASH_ENV <<< hook.sh; export BASH_ENV; bash -c true",
            "printf -v BASH_ENV hook.sh; export BASH_ENV; bash -c true",
            ": ${BASH_ENV:=hook.sh}; export BASH_ENV; bash -c true",
            "set -a; BASH_ENV=hook.sh; bash -c true",
            "IFS=:; x=sh:hook.sh; $x",
            "PATH=/usr/bin:/bin BASH_ENV=hook.sh bash -c true",
            "ENV=hook.sh sh -i < /dev/null",
            "export ENV=hook.sh; sh -i < /dev/null",
            "SHELL=./hook.sh flock one -c true",
            "cat hook.sh | bash",
            "cat < hook.sh | sh",
            "tail -n 5 hook.sh | sh",
            'bash -c "$(cat hook.sh)"',
            'bash <<< "$(< hook.sh)"',
            'eval "$(cat hook.sh)"',
            "source <(cat hook.sh)",
            ". <(cat hook.sh)",
            "bash <(cat hook.sh)",
            'mapfile -t a < hook.sh; eval "${a[0]}"',
            "while read -r line; do $line; done < hook.sh",
            "xargs -d '\\n' -n 1 bash -c < hook.sh",
            "cp hook.sh copy.sh; bash copy.sh; rm copy.sh",
            "ln -sf hook.sh link.sh; bash link.sh; rm link.sh",
            "tar -c hook.sh | tar -xC sub; sh sub/hook.sh",
            "make -s -f - < runs.mk",
            "GIT_SSH_COMMAND='sh hook.sh' git ls-remote ssh://nowhere/x",
            "export GIT_SSH=./hook.sh; git ls-remote ssh://nowhere/x",
            "EDITOR='sh hook.sh' git config -e -f one",
            "cat hook.sh | ./copied-shell",
            "./copied-shell < hook.sh",
            "busybox sh -c '. ./hook.sh'",
            "crontab - < hook.sh",
            "at now < hook.sh",
            "enable -f ./hook.sh x",
            "parallel < hook.sh",
            "docker exec -i box sh < hook.sh",
            "ssh host bash < hook.sh",
            "kubectl apply -f - < hook.sh",
            "trap 'source hook.sh' EXIT",
            "PATH=. hook.sh",
            "alias x='sh hook.sh'; x",
            "coproc sh hook.sh",
            "exec 3< hook.sh; bash /dev/fd/3",
            "exec < hook.sh; bash",
            "{ read -r x; $x; } < hook.sh",
            "for x in $(cat hook.sh); do $x; done",
            "x=$(< hook.sh); $x",
            "psql() { :; }; bash -c 'psql -f hook.sh'",
        )
    ),
    *(
        (("bash text", text), "n.txt")
        for text in (
            "n=$(cat n.txt); echo $((n))",
            "n=$(cat n.txt); m=$n; ((m++))",
            "read -r n < n.txt; [[ $n -gt 3 ]]",
            "n=`cat n.txt`; let n+=1",
            "declare -i n=$(cat n.txt)",
            "n=$(cat n.txt); s=text; echo ${s:n}",
            "n=$(cat n.txt); a=(1 2); echo ${a[n]}",
            "n=$(cat n.txt); a[n]=1",
            "n=$(cat n.txt); echo ${!n}",
            "declare -n r=$(cat n.txt); echo $r",
            "while read -r n; do t=$((t + n)); done < n.txt",
            "for n in $(cat n.txt); do echo $((n + 1)); done",
            "echo $(( $(cat n.txt) + 1 ))",
            "n=$(< n.txt); for ((i = 0; i < n; i++)); do :; done",
            'printf -v n %s "$(cat n.txt)"; echo $((n))',
            "mapfile -t a < n.txt; echo $((a[0] + 1))",
            'test -v "$(cat n.txt)"',
            'f() { echo $(($1)); }; f "$(cat n.txt)"',
            "xargs -I{} timeout 5 {} < n.txt",
            "tar xf n.txt; bash ./x.sh",
            "unzip -o n.txt; ./x.sh",
            "gunzip -kf x.sh.gz; bash x.sh; cat n.txt",
            "awk '{ print > \"x.sh\" }' n.txt; bash x.sh",
            "sed -n 'w x.sh' n.txt; bash x.sh",
            "split -l 5 n.txt part; bash partaa",
        )
    ),
    (("bash text", "PYTHONPATH=. python3 -c 1"), "sitecustomize.py"),
    (("python3", "-m", "json.tool", "one"), "argparse.py"),
    (("python3", "daily.py"), "decimal.py"),
    *(
        (tuple(words.split()), "hook.sh")
        for words in (
            "env BASH_ENV=hook.sh bash -c true",
            "env -S BASH_ENV=hook.sh bash -c true",
            "sudo BASH_ENV=hook.sh bash -c true",
            "env SOME_TOOLS_OWN_HOOK=hook.sh ./copied-shell",
            "bash through.sh",
            "bash alias.sh",
            "awk -f main.awk",
            "gawk -f main.awk",
            "sed -f hook.sh one",
            "/usr/bin/make -f runs.mk",
            "make -s -f runs.mk",
            "make",
            "env MAKEFILES=runs.mk make all",
            "git status",
            "/usr/bin/git fetch",
            "./shell hook.sh",
            "./copied-shell hook.sh",
            "./copied-shell --rcfile=hook.sh",
            "busybox sh hook.sh",
            "/usr/bin/busybox sh hook.sh",
            "ssh -F ssh.conf nowhere",
            "bwrap --bind / / ./hook.sh",
            "systemd-run ./hook.sh",
            "crontab hook.sh",
            "at -f hook.sh now",
            "psql -f hook.sh",
            "psql --file=hook.sh db",
            "/usr/bin/psql -f hook.sh",
            "mysql -e source(hook.sh)",
            "sqlite3 -init hook.sh db",
            "pip install .",
            "pip install -r hook.sh",
            "pip3 install -e .",
            "python3 -m pip install .",
            "uv pip install .",
            "npm test",
            "npm run build",
            "yarn build",
            "cargo build",
            "cargo test",
            "tox",
            "pytest",
            "python3 -m pytest",
            "pytest -p hook",
            "docker build .",
            "docker compose up",
            "docker run -v .:/x image sh /x/hook.sh",
            "terraform apply",
            "ansible-playbook hook.sh",
            "kubectl apply -f hook.sh",
            "vim -es -S hook.sh",
            "gdb -batch -x hook.sh",
            "node main.js",
            "node --experimental-loader ./hook.sh main.js",
            "perl main.pl",
            "ruby main.rb",
            "tclsh main.tcl",
            "run-parts .",
            "some-tool-that-nobody-knows hook.sh",
        )
    ),
    (("perl", "-e", "do './hook.sh'"), "hook.sh"),
    (("git", "-c", "alias.x=!sh hook.sh", "x"), "hook.sh"),
    (("sqlite3", "db", ".read hook.sh"), "hook.sh"),
    (("python3", "-c", "import runpy; runpy.run_path('x.py')"), "x.py"),
    (("python3", "-c", "import sys; sys.path.insert(0, 'sub'); import x"), "sub/x.py"),
    (("python3", "-c", "exec(open('x.py').read())"), "x.py"),
    (("python3", "-c", "__import__(input())"), "x.py"),
    *(
        (("python3", "-c", text), file)
        for text, file in (
            ("import pickle; pickle.load(open('x', 'rb'))", "x"),
            ("import timeit; timeit.timeit(open('x').read())", "x"),
            ("import logging.config; logging.config.fileConfig('x')", "x"),
            ("import sqlite3; sqlite3.connect(':memory:').executescript(open('x').read())", "x"),
            ("import os; os.environ['BASH_ENV'] = 'hook.sh'; os.system('bash -c true')", "hook.sh"),
            ("import os; os.putenv('BASH_ENV', 'hook.sh'); os.system('bash -c true')", "hook.sh"),
            ("import subprocess; subprocess.run(['bash', '-c', '1'], env={'BASH_ENV': 'hook.sh'})", "hook.sh"),
            ("import subprocess; subprocess.run(['bash', '-c', '1'], env=dict(x))", "hook.sh"),
            ("import subprocess; subprocess.run(['./hook.sh'], cwd='sub')", "sub/hook.sh"),
            ("import os; os.chdir('sub'); os.system('./hook.sh')", "sub/hook.sh"),
            ("import subprocess; subprocess.run(['bash'], stdin=open('hook.sh'))", "hook.sh"),
        )
    ),
    (("awk", "-i", "hook.sh", "1", "one"), "hook.sh"),
    (("awk", '@include "hook.sh"', "one"), "hook.sh"),
    (("apt-get", "-c", "hook.sh", "update"), "hook.sh"),
    (("apt-get", "install", "./hook.deb"), "hook.deb"),
    (("env", "PYTHONSTARTUP=x.py", "python3", "-i", "-c", ""), "x.py"),
    (("env", "PYTHONUSERBASE=base", "python3", "-c", "1"), "base/lib/python3.13/site-packages/x.pth"),
    (("env", "PYTHONWARNINGS=ignore::x.Warned", "python3", "-c", "1"), "x.py"),
    (("env", "PERL5OPT=-Mx", "perl", "-e", "1"), "x.pm"),
    (("env", "NODE_OPTIONS=--import=./x.mjs", "node", "-v"), "x.mjs"),
    (("env", "LD_PRELOAD=./x.so", "ls"), "x.so"),
    (("env", "LD_LIBRARY_PATH=.", "ls"), "libc.so.6"),
    (("env", "OPENSSL_CONF=x.cnf", "openssl", "version"), "x.cnf"),
    (("env", "RIPGREP_CONFIG_PATH=x.rc", "rg", "x"), "x.rc"),
    (("./venv/bin/python", "uses-package.py"), "venv/lib/python3.13/site-packages/pack.py"),
    (("./venv/bin/python", "uses-package.py"), "venv/lib/python3.13/site-packages/other.pth"),
    (("./venv/bin/python", "-m", "pack"), "venv/lib/python3.13/site-packages/pack.py"),
    (("./venv/bin/tool",), "venv/lib/python3.13/site-packages/pack.py"),
]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = job_with_scripts(tmp_path)
    made.write("one", "1\n")
    made.write("through.sh", "cat hook.sh | bash\n")
    made.write("alias.sh", "git -c alias.x='!sh hook.sh' x\n")
    made.write("main.pl", "do './x.pl';\n")
    made.write("main.awk", 'BEGIN { system("sh hook.sh") }\n')
    made.write("runs.mk", "all:\n\t@/bin/sh hook.sh\n")
    made.write("ssh.conf", "Host *\n  ProxyCommand sh hook.sh >&2\n")
    made.write("uses-package.py", "import pack\n")
    made.write("venv/pyvenv.cfg", "")
    made.write("venv/bin/tool", f"#!{made.place}/venv/bin/python\nimport pack\n")
    (made.place / "venv/bin/python").symlink_to("/usr/bin/python3")
    (made.place / "shell").symlink_to("/bin/bash")
    shutil.copy("/bin/bash", made.place / "copied-shell")
    return made


@pytest.mark.parametrize(("command", "file"), ATTACKS, ids=lambda value: str(value)[:60])
def test_what_runs_a_file_is_bound_to_it_or_can_not_be_pinned(job: Job, command: tuple[str, ...], file: str) -> None:
    job.write(file, "one\n")
    fields = {"code": command[1], "argv": (), "language": "bash"} if command[0] == "bash text" else {}
    before = found(job.place, *command, **fields)
    job.write(file, "another\n")
    assert before.unbound or before.files != found(job.place, *command, **fields).files


RUNNING = [
    ("bash text", "BASH_ENV=hook.sh bash -c true"),
    ("bash text", "export ENV=hook.sh; sh -i < /dev/null 2> /dev/null"),
    ("bash text", "cat hook.sh | bash"),
    ("bash text", "source <(cat hook.sh)"),
    ("bash text", "SHELL=./hook.sh flock one -c true"),
    ("bash text", "./copied-shell < hook.sh"),
    ("bash text", "GIT_SSH_COMMAND='sh hook.sh; true' git ls-remote ssh://nowhere/x 2>&1 || true"),
    ("sqlite3", ":memory:", ".shell sh hook.sh"),
    ("bash", "through.sh"),
    ("awk", "-f", "main.awk"),
    ("make", "-s", "-f", "runs.mk"),
    ("./shell", "hook.sh"),
]


@pytest.mark.parametrize("command", RUNNING, ids=" ".join)
async def test_a_changed_file_does_not_run_under_a_pin(
    job: Job, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write("hook.sh", "#!/bin/sh\necho good\n")
    with monkeypatch.context() as blind:
        blind.setattr("redoma.pipeline.executed_files.find", lambda *_, **__: ExecutedFiles())
        assert "good\n" in (await job.pin(*command, requester="eve")).stdout
        job.write("hook.sh", EVIL)
        assert "evil\n" in (await job.run(*command, label="job", requester="eve")).stdout
    job.write("hook.sh", "#!/bin/sh\necho good\n")
    pinned = await job.pin(*command)
    assert pinned.status is not Status.DENIED or "can't be pinned" in (pinned.error or "")
    job.write("hook.sh", EVIL)
    result = await job.run(*command, label="job", wait=False)
    assert result.status in (Status.DENIED, Status.PENDING)  # an alarm, or a new question
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("command", "file", "good", "evil"),
    [
        ("n=$(cat n.txt); echo $((n))", "n.txt", "3\n", "a[$(echo evil >&2)]\n"),
        ("xargs -I{} timeout 5 {} < n.txt", "n.txt", "true\n", "./evil.sh\n"),
        ("cat n.txt | awk '{ print > \"x.sh\" }'; bash x.sh", "n.txt", "true\n", "echo evil\n"),
        ("PYTHONPATH=. python3 -c 1", "sitecustomize.py", "", "print('evil')\n"),
        ("python3 -m json.tool one.json", "argparse.py", "", "print('evil')\n"),
    ],
)
async def test_data_that_is_code_does_not_run_under_a_pin(
    job: Job, command: str, file: str, good: str, evil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write("one.json", "{}")
    job.write("evil.sh", EVIL)

    def put(text: str) -> None:
        if text:
            job.write(file, text)
        else:
            (job.place / file).unlink(missing_ok=True)

    with monkeypatch.context() as blind:
        blind.setattr("redoma.pipeline.executed_files.find", lambda *_, **__: ExecutedFiles())
        put(good)
        assert (await job.pin("bash text", command, requester="eve")).status is Status.OK
        put(evil)
        result = await job.run("bash text", command, label="job", requester="eve")
        assert "evil" in result.stdout + result.stderr
    put(good)
    await job.pin("bash text", command)
    put(evil)
    result = await job.run("bash text", command, label="job", wait=False)
    assert result.status in (Status.DENIED, Status.PENDING)
    assert "evil" not in result.stdout + result.stderr


ORDINARY = [
    "i=0; while [ $i -lt 3 ]; do i=$((i + 1)); done; ./x.sh",
    "n=$(ls | wc -l); now=$(date +%s); echo $((n + 1)) $((now - 60)); ./x.sh",
    'a=(1 2); for i in "${!a[@]}"; do echo ${a[$i]}; done; ./x.sh',
    "tar -czf backup.tgz sub; ./x.sh",
    "tar -czf backup.tgz sub && rsync -a backup.tgz /srv/backups/",
    "find . -name '*.log' -mtime +7 -delete",
    "pg_dump db | gzip > dump.gz",
    "cd sub && ../x.sh",
    "curl -fsS https://example.org/health | jq .status",
    "sort -u one | awk '{ print $1 }' | sed 's/a/b/' > out",
    'for f in *.log; do gzip "$f"; done',
    "LC_ALL=C TZ=UTC sort one",
    "sudo -u ana timeout 9 env A=1 nice ./x.sh",
    'log() { echo "$1" >&2; }; log start; ./x.sh; log end',
    "bash <<< 'echo 1'",
    "python3 report.py < one",
    "python3 -m json.tool < one",
    "./outer.sh",
    "kill -0 1; sleep 1; date",
]


@pytest.mark.parametrize("code", ORDINARY)
def test_ordinary_jobs_can_be_pinned(job: Job, code: str) -> None:
    assert found(job.place, code=code, argv=(), language="bash").unbound == ()


def test_input_that_will_be_given_while_it_runs_can_not_be_pinned_where_it_is_code(job: Job) -> None:
    for words, takes_code in (
        (("bash",), True),
        (("python3", "-"), True),
        (("cat",), False),
        (("./copied-shell",), True),
    ):
        request = Request(argv=words, language="command", backend="native", cwd=str(job.place))
        view = visible_to(request)
        assert find(request, view).unbound == ()
        assert bool(find(request, view, live_input=True).unbound) is takes_code
