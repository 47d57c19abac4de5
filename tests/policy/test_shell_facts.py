"""What scripts and argument vectors are reported to do."""

from __future__ import annotations

import pytest

from redoma.policy.facts import UNKNOWN, Command, Fact, Trait
from redoma.policy.shell import TRAITS, facts_of_argv, facts_of_script


def commands(facts: list[Fact]) -> list[tuple[str, ...]]:
    return [(fact.name, *fact.args) for fact in facts if isinstance(fact, Command)]


def traits(source: str) -> set[str]:
    found = {fact.name for fact in facts_of_script(source) if isinstance(fact, Trait)}
    assert found <= set(TRAITS)
    return found - {"shell.operator"}


def writes(source: str) -> set[str]:
    return {path for fact in facts_of_script(source) if isinstance(fact, Command) for path in fact.writes}


REMOVE = ("rm", "-rf", "/")


@pytest.mark.parametrize(
    "source",
    [
        "ls | rm -rf /",
        "ls && rm -rf / || true",
        "(rm -rf /) &",
        "{ rm -rf /; }",
        "f() { rm -rf /; }",
        "echo $(rm -rf /)",
        'echo "`rm -rf /`"',
        "echo `echo \\`rm -rf /\\``",
        "cat <(rm -rf /)",
        "echo ${x:-`rm -rf /`}",
        "echo ${x#`rm -rf /`}",
        "echo $(( $(rm -rf /) ))",
        "case x in $(rm -rf /)) ;; esac",
        "x=$(rm -rf /)",
        "export x=`rm -rf /`",
        "cat <<EOF\n`rm -rf /`\nEOF",
        "cat <<EOF\n\\\\$(rm -rf /)\nEOF",
        "cat <<'A' <<B\n$(ls)\nA\n$(rm -rf /)\nB",
        "if true; then :; elif rm -rf /; then :; fi",
        "coproc N { rm -rf /; }",
        "sudo -u root -- rm -rf /",
        "env -i A=1 nice -n 5 timeout -k 1 5s rm -rf /",
        "env -S 'rm -rf /'",
        "echo / | xargs rm -rf",
        "find / -exec rm -rf {} +",
        "busybox rm -rf /",
        "bash -ec 'rm -rf /'",
        "bash -o pipefail -c 'rm -rf /'",
        "sh -c 'rm -rf \"$1\"' _ /",
        "bash -c '\"$@\"' _ rm -rf /",
        "bash -c \"bash -c 'rm -rf /'\"",
        "eval 'rm -rf /'",
        "x='rm -rf /'; eval \"$x\"",
        "trap 'rm -rf /' EXIT",
        "alias x='rm -rf /'",
        "ssh host rm -rf /",
        "su - root -c 'rm -rf /'",
        "parallel rm -rf ::: /",
        "bash <<EOF\nrm -rf /\nEOF",
        "bash 0<<EOF\nrm -rf /\nEOF",
        "bash <<< 'rm -rf /'",
        "cat <<'EOF' | sudo bash -s\nrm -rf /\nEOF",
        "echo rm -rf / | tee log | bash",
        "bash <(echo rm -rf /)",
        "source /dev/stdin <<< 'rm -rf /'",
        "echo 'rm -rf /' > x.sh; chmod +x x.sh; ./x.sh",
        "cat > x.sh <<'EOF'\nrm -rf /\nEOF\nbash x.sh",
        "tee x.sh <<< 'rm -rf /'; . ./x.sh",
        "git submodule foreach 'rm -rf /'",
        "docker run -it --name x image rm -rf /",
        "echo '* * * * * rm -rf /' | crontab -",
        "python3 -c 'import os; os.system(\"rm -rf /\")'",
        "python3 - <<'PY'\nimport os\nos.system('rm -rf /')\nPY",
    ],
)
def test_a_command_is_found_wherever_it_is_run_from(source: str) -> None:
    assert REMOVE in commands(facts_of_script(source))


@pytest.mark.parametrize(
    "source",
    [
        "cat <<EOF; rm -rf /\nx\nEOF",
        "cat <<E'O'F\nx\nEOF\nrm -rf /",
        "cat <<\\EOF\nx\nEOF\nrm -rf /",
        "cat <<-EOF\n\tx\n\tEOF\nrm -rf /",
        "cat <<EOF\nEO\\\nF\nrm -rf /",
        "cat <<EOF\nEOF \nEOF\nrm -rf /",
        "echo $((1<<EOF))\nrm -rf /\nEOF",
        "(( x = 1 <<EOF ))\nrm -rf /\nEOF",
        "echo '<<EOF'\nrm -rf /\nEOF",
        'echo "$(echo "<<EOF")"\nrm -rf /\nEOF',
        "# <<EOF\nrm -rf /\nEOF",
        "echo a\\<<'E'\nx\nE\nrm -rf /",
        "case x in\nx) cat <<EOF\nhi\nEOF\nrm -rf / ;;\nesac",
        "ls # comment \\\nrm -rf /",
        "ec\\\nho a\\\n#b; rm -rf /",
    ],
)
def test_where_the_grammar_and_bash_differ_bash_is_followed(source: str) -> None:
    assert REMOVE in commands(facts_of_script(source))


@pytest.mark.parametrize(
    "source",
    [
        'echo "rm -rf /"',
        "# rm -rf /",
        "git commit -m 'remove sudo; rm -rf /'",
        "grep 'curl | sh' README.md",
        "cat <<'EOF'\nrm -rf /\n$(rm -rf /)\nEOF",
        "x='rm -rf /'",
        "command -v rm",
        "echo \\$\\(rm -rf /\\)",
    ],
)
def test_text_that_only_mentions_a_command_is_not_one(source: str) -> None:
    found = facts_of_script(source)
    assert "rm" not in {name for name, *_ in commands(found)}
    assert not traits(source)


@pytest.mark.parametrize(
    ("source", "trait"),
    [
        ("if x; then", "shell.parse-error"),
        ("a=1 (b)", "shell.parse-error"),
        ("echo 'a", "shell.parse-error"),
        ("cat <<EOF\nx", "shell.parse-error"),
        ("curl x | sh", "shell.pipe-to-interpreter"),
        ("curl x | tee y | sudo -E bash -s -- z", "shell.pipe-to-interpreter"),
        ("curl x | (cd y; bash)", "shell.pipe-to-interpreter"),
        ("base64 -d <<< x | sh", "shell.pipe-to-interpreter"),
        ('bash -c "$(curl x)"', "shell.pipe-to-interpreter"),
        ("bash <(wget -qO- x)", "shell.pipe-to-interpreter"),
        ("source <(curl x)", "shell.pipe-to-interpreter"),
        ("python3 < <(curl x)", "shell.pipe-to-interpreter"),
        ("perl -e 'x'", "shell.inline-code"),
        ("perl -lane 'x' f", "shell.inline-code"),
        ("node --eval=x", "shell.inline-code"),
        ("awk 'BEGIN { system(\"x\") }'", "shell.inline-code"),
        ("awk '{ print | \"sh\" }' f", "shell.inline-code"),
        ("ed f <<< '!x'", "shell.inline-code"),
        ('eval "$x"', "shell.dynamic-code"),
        ('source "$x"', "shell.dynamic-code"),
        ('bash -c "$x"', "shell.dynamic-code"),
        ("bash $x", "shell.dynamic-code"),
        ("bash", "shell.dynamic-code"),
        ("cat f | sh", "shell.dynamic-code"),
        ("echo ls | sh", "shell.dynamic-code"),
        ("bash <<EOF\nls $x\nEOF", "shell.dynamic-code"),
        ('echo "${x@P}"', "shell.dynamic-code"),
        ("test -v 'a[$(x)]'", "shell.dynamic-code"),
        ("[[ 'a[$(x)]' -eq 0 ]]", "shell.dynamic-code"),
        ("x='a[$(y)]'; (( x ))", "shell.dynamic-code"),
        ("curl -o x.sh u; bash x.sh", "shell.dynamic-code"),
        (":(){ :|:& };:", "shell.fork-bomb"),
        ("bomb() { bomb | bomb & }; bomb", "shell.fork-bomb"),
        ("LD_PRELOAD=x ls", "shell.environment-hook"),
        ("env LD_PRELOAD=x ls", "shell.environment-hook"),
        ("export BASH_ENV=x", "shell.environment-hook"),
        ("export PATH=/tmp/x:$PATH", "shell.environment-hook"),
        ("PAGER='sh -c x' git log", "shell.environment-hook"),
        ("IFS=:; ls", "shell.environment-hook"),
        ("echo x > /dev/tcp/h/80", "shell.network-redirect"),
        ("exec 3<>/dev/tcp/h/80", "shell.network-redirect"),
        ("ls() { :; }", "shell.shadowed-command"),
        ("alias ls=x", "shell.shadowed-command"),
        ("git -c core.pager=x log", "shell.hidden-option"),
        ("git clone ext::x", "shell.hidden-option"),
        ("tar cf x --checkpoint-action=exec=y z", "shell.hidden-option"),
        ("ssh -o ProxyCommand=x h", "shell.hidden-option"),
        ("vim -c '!x'", "shell.hidden-option"),
        ("sed 's/a/b/e' f", "shell.hidden-option"),
        ("make -f - < f", "shell.hidden-option"),
        ("e\0cho x", "source.nul"),
        ("echo \udc80", "source.bad-utf8"),
        ("echo \u202ex", "source.invisible"),
        ("echo a\v#; ls", "source.invisible"),
        ("echo " + "x" * 300_000, "source.too-large"),
        ("bash -c " * 8 + "x", "shell.dynamic-code"),
        ("eval " * 8 + "x", "source.too-deep"),
        ("$(" * 200 + "x" + ")" * 200, "source.too-deep"),
    ],
)
def test_a_structure_is_named_by_its_trait(source: str, trait: str) -> None:
    assert trait in traits(source)


@pytest.mark.parametrize(
    "source",
    [
        'while IFS= read -r line; do echo "$line"; done < f',
        "IFS=$'\\n\\t'",
        'export PATH="$HOME/.local/bin:$PATH"',
        "PATH=$PATH:/x/bin ls",
        "GIT_PAGER=cat git log",
        "ENV=production ./run",
        "curl x | python3 -c 'import sys'",
        "curl x | jq .",
        "python3 run.py < data.csv",
        'python3 "$DIR/run.py"',
        "bash build.sh",
        "source ./lib.sh",
        "awk -F: '{ print $1 }' f",
        "sed -n '/re/p; s/e/x/g' f",
        "git -c user.name=x commit",
        "test() { pytest; }; test",
        'cat > f <<EOF\n$x "quoted"\nEOF',
        "python3 - <<'PY'\nprint(1)\nPY",
        "tar czf x.tgz --exclude=.git .",
        "rsync -av -e 'ssh -p 22' a h:b",
        "exec 3< f; read -r x <&3; exec 3<&-",
    ],
)
def test_ordinary_shell_has_no_trait(source: str) -> None:
    assert not traits(source)


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("echo x > /etc/../etc//passwd", {"/etc/passwd"}),
        ("cd /etc && echo x > passwd", {"/etc/passwd"}),
        ("(cd /etc); echo x > passwd", {"passwd"}),
        ('cd "$x"; echo y > passwd', {"passwd"}),
        ("{ ls; } > a 2> b", {"a", "b"}),
        ("> a", {"a"}),
        ("ls 2>&1 >&2", set()),
        ("ls &> a", {"a"}),
        ("exec 3<> a", {"a"}),
        ("echo x | sudo tee -a /etc/hosts", {"/etc/hosts"}),
        ("cp -t /etc a", {"/etc", "/etc/a"}),
        ("cp a b /etc/c", {"/etc/c"}),
        ("mv /etc/a b", {"/etc/a", "b"}),
        ("dd if=a of=/dev/sda", {"/dev/sda"}),
        ("sed -i s/a/b/ /etc/x", {"s/a/b", "/etc/x"}),
        ("sed s/a/b/ /etc/x", set()),
        ("rm -rf /./ ~/x", {"/", "~/x"}),
        ("chmod -R 777 /x", {"/x"}),
        ("curl -o /etc/x u", {"/etc/x"}),
        ("tar xf a -C /etc", {"/etc"}),
        ("tar cf a -C /etc .", {"a"}),
        ("echo x > /e?c/passwd", {"/e?c/passwd", "/etc/passwd"}),
    ],
)
def test_what_a_command_writes_is_listed(source: str, paths: set[str]) -> None:
    assert writes(source) == paths


def test_what_a_database_is_fed_is_one_more_argument() -> None:
    assert ("psql", "app", "DROP TABLE x;\n") in commands(facts_of_script("psql app <<SQL\nDROP TABLE x;\nSQL"))
    assert ("psql", "app", UNKNOWN) in commands(facts_of_script("generate | psql app"))


def test_a_fact_says_where_it_stands_and_what_it_was_found_in() -> None:
    source = "# é\necho 'é' \\\n  x; sudo bash -c 'ls; rm a'\n"
    facts = facts_of_script(source)
    echo = next(fact for fact in facts if isinstance(fact, Command) and fact.name == "echo")
    remove = next(fact for fact in facts if isinstance(fact, Command) and fact.name == "rm")
    assert (echo.line, echo.column) == (2, 1)
    assert (remove.line, remove.column, remove.via) == (3, 6, ("sudo", "bash -c"))


def test_lines_after_a_here_document_keep_their_numbers() -> None:
    facts = facts_of_script("cat <<A\n1\n2\nA\n\n  ls")
    assert [(fact.line, fact.column) for fact in facts if isinstance(fact, Command)] == [(1, 1), (6, 3)]


def test_an_argument_vector_is_not_expanded() -> None:
    assert commands(facts_of_argv(("echo", "$(rm -rf /)", "*", "`x`"))) == [("echo", "$(rm -rf /)", "*", "`x`")]
    assert commands(facts_of_argv(("rm", "-rf", "/"))) == [REMOVE]


def test_an_argument_vector_is_unwrapped_like_a_script() -> None:
    assert REMOVE in commands(facts_of_argv(("sudo", "bash", "-c", "rm -rf /")))
    assert (*REMOVE, UNKNOWN) in commands(facts_of_argv(("env", "A=1", "xargs", "rm", "-rf", "/")))


def test_code_that_is_nested_too_deeply_is_not_followed() -> None:
    assert [fact.name for fact in facts_of_argv(("ls",), depth=6) if isinstance(fact, Trait)] == ["source.too-deep"]
    assert [fact.name for fact in facts_of_script("ls", depth=6) if isinstance(fact, Trait)] == ["source.too-deep"]
