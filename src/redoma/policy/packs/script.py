"""Built-in rules for scripts that are handed over whole: how long they may be, secrets in them,
and text that is run as code, also where that text is written out and could be read.
"""

from __future__ import annotations

from .base import listed, refuse

# A name that says what it holds, and a quoted text with a digit in it: `api_key = 'sk-1234'`. Too short or too plain
# to be known for a credential by its looks, so it is no pattern of what is taken out of outputs. Between the two may be
# a closing quote or bracket, a type, parentheses and a continued line. With a brace it is what a text is made from.
_NAME = r"(?i)(?P<name>api[_-]?key|passw(?:or)?d|secret|token)"
_ASSIGNED = (
    _NAME + r"""["']?\]?\s{0,20}(?:=|:=|:(?:\s{0,20}[\w.|\[\] ]{1,60}=)?)[\s(\\]{0,20}"""
    r"""[rbuf]{0,2}["']{1,3}\s{0,20}(?P<secret>[^'"\s${}]{0,100}[0-9][^'"\s{}]*)\s{0,20}["']"""
)
# In Bash a text needs no quotes. One with letters and digits that begins with either: no path, number or variable.
_UNQUOTED = (
    _NAME + r"""=(?P<secret>(?:[a-z_][^\s0-9'"`$&|;<>(){}\\]{0,100}[0-9]|[0-9]{1,100}[a-z_])[^\s'"`$&|;<>(){}\\]*)"""
    r"""(?:[\s;&|)]|$)"""
)

RULES = (
    refuse(
        id="script.length",
        reason="it is longer than the 10000 characters a script may have",
        suggestion="split it, or move data out of it",
        longer_than=10_000,
    ),
    refuse(
        id="script.secret",
        reason="it holds an embedded secret",
        suggestion="pass the secret to the run as a variable instead",
        traits=("source.secret",),
        match=("aws configure set aws_access_key_id AKIAIOSFODNN7EXAMPLE",),
        not_match=("token=$(get_token)", "echo 'password policy'"),
    ),
    refuse(
        id="script.assigned-secret",
        reason="it holds a secret by its name: a text is given to a password, a token or a key",
        suggestion="pass the secret to the run as a variable instead",
        pattern=_ASSIGNED,
        match=(
            "api_key = 'sk-1234'",
            'GITHUB_TOKEN="abc123"',
            "{'token': 'abc123'}",
            "password = ('hunter2')",
            'password = """hunter2"""',
            "password = f'hunter2'",
            "password = \\\n    'hunter2'",
            "token = b'a1'",
            "password: str = 'hunter2'",
            "os.environ['API_KEY'] = 'abc123'",
            "connect(password='hunter2')",
        ),
        not_match=(
            "token = get_token(1)",
            "max_tokens = '4096'",
            "secret = 'my-secret'",
            'TOKEN="$TOKEN2"',
            "token=''",
            "password='{0}'.format(x)",
            "token = f'{user}-1'",
            "password = words['k1']",
            "f(token=token1)",
        ),
    ),
    refuse(
        id="script.unquoted-secret",
        reason="it holds a secret by its name: a text is given to a password, a token or a key",
        suggestion="pass the secret to the run as a variable instead",
        language="bash",
        pattern=_UNQUOTED,
        match=("export API_KEY=abc123", "TOKEN=abc123", "x --token=abc123 y", "PASSWORD=7seas; ls"),
        not_match=(
            "token=$(get_token1)",
            "TOKEN=$TOKEN2",
            "max_tokens=4096",
            "TOKEN=1",
            "SECRET=/run/secrets/s1",
            "token=",
            "PASSWORD=hunter",
            "TOKEN=${1}",
            "token=`get1`",
            "TOKEN=abc$1",
            "token_1=a1",
        ),
    ),
    refuse(
        id="script.text-as-code",
        reason="it runs text as code, or imports by a name given as text: dangerous in a script that nobody reviews",
        suggestion="write the code out; to read data, use json.loads or ast.literal_eval",
        calls=listed("eval, exec, compile, __import__"),
        attributes=("__import__",),
        match=("eval('1 + 1')", "eval (x)", "exec('x = 1')", "compile('1', 'f', 'eval')", "__import__('os')"),
        not_match=("'eval(x)'", "# eval(x)", "model.eval()", "import re\nre.compile('x')", "import os"),
    ),
    refuse(
        id="script.starts-a-shell",
        reason="it hands a text to a shell: dangerous, since the shell reads more into it than one program to start",
        suggestion="start the program itself, with a list of words: subprocess.run(['ls', '-l'])",
        calls=listed("os.system, os.popen, subprocess.getoutput, subprocess.getstatusoutput"),
        traits=("python.shell",),  # any of these, and `shell=True`
        match=("import os\nos.system('ls')", "import subprocess\nsubprocess.run('ls', shell=True)"),
        not_match=("import subprocess\nsubprocess.run(['ls', '-l'])", "'os.system(1)'", "import os\nos.getcwd()"),
    ),
    refuse(
        id="script.eval",
        reason="it runs text as code (eval): dangerous in a script that nobody reviews",
        suggestion="write the commands out",
        command=("eval",),
        match=("eval ls", 'eval "$x"', "x=$(eval ls)"),
        not_match=("echo eval", "# eval ls", "echo 'eval ls'"),
    ),
)
