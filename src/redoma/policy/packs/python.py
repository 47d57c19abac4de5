"""The built-in rules about Python, as data.

`STANDARD` lets ordinary programs be: the sandbox contains them. `STRICT` is an allowlist for small pieces of code, and
`CORE` narrows it to code that imports nothing.
"""

from __future__ import annotations

from .base import EVERYTHING, ask, listed, on_host, refuse, touching

_ALWAYS = (
    refuse(
        id="python.encoding",
        outright=True,
        reason="it asks to be read in another encoding than UTF-8: what is checked and what runs would differ",
        suggestion="save it as UTF-8 and drop the coding comment",
        traits=("python.encoding",),
        match=("# coding: utf-7\nx = 1", "#!/usr/bin/python\n# -*- coding: unicode_escape -*-"),
        not_match=("# -*- coding: utf-8 -*-\nx = 1", "x = 1\ny = 2\n# coding: utf-7"),
    ),
    ask(
        id="python.dynamic-code",
        reason="it runs text as code: dangerous, since what it will do can't be read beforehand",
        suggestion="write the code out; to read data, use json.loads or ast.literal_eval",
        calls=listed("""
            eval, exec, compile, code.interact, code.InteractiveInterpreter*, code.InteractiveConsole*,
            marshal.loads, types.CodeType, types.FunctionType, runpy.run_path, timeit.timeit, timeit.repeat,
            timeit.Timer, cProfile.run, cProfile.runctx, profile.run, profile.runctx, pdb.run
        """),
        literal=False,
        attributes=("eval", "exec", "compile", "types.CodeType"),
        match=("eval(x)", "exec(open('x').read())", "f = eval\nf(x)", "__builtins__.eval(x)", "map(exec, lines)"),
        not_match=(
            "eval('1 + 1')",
            "import ast\nast.literal_eval(x)",
            "model.eval()",
            "import re\nre.compile(x)",
            "'eval(x)'",
            "import pandas as pd\ndf = pd.read_csv(p)\ndf.eval('a + b')",
        ),
    ),
    ask(
        id="python.dynamic-command",
        reason="it starts a command that can't be known beforehand",
        suggestion="write the command as a list whose first word is a constant",
        traits=("python.dynamic-command",),
        attributes=listed("""
            os.system, os.popen, os.exec*, os.spawn*, os.posix_spawn*, pty.spawn, subprocess.run, subprocess.call,
            subprocess.check_call, subprocess.check_output, subprocess.getoutput, subprocess.getstatusoutput
        """),
        match=(
            "import os\nos.system(x)",
            "import subprocess\nsubprocess.run(cmd)",
            "import os\nlist(map(os.system, x))",
            "import os\nos.system(f'ls {x}')",
        ),
        not_match=(
            "import subprocess\nsubprocess.run(['git', 'status'])",
            "import os\nos.system('ls')",
            "import subprocess\nsubprocess.run(['git', 'log', path])",
        ),
    ),
    ask(
        id="python.dynamic-attribute",
        reason="it picks a member of a sensitive module by a name that can't be known, or hands the module around",
        suggestion="write the member's name out",
        traits=("python.dynamic-attribute",),
        attributes=listed("*.__globals__*, *.__builtins__*, *.f_globals*, *.f_builtins*, sys.modules"),
        calls=listed("""
            *.__globals__*, *.__builtins__*, object.__subclasses__, *.__base__.__subclasses__,
            *.__bases__*.__subclasses__, *.__mro__*.__subclasses__
        """),
        match=(
            "import os\ngetattr(os, x)(y)",
            "import os\nf(os)",
            "f.__globals__['os']",
            "import sys\nsys.modules[x]",
            "import os\n[os][0].system('ls')",
            "().__class__.__base__.__subclasses__()",
        ),
        not_match=(
            "import sys\nprint('os' in sys.modules)",
            "import os\nos.getcwd()",
            "import os\nhasattr(os, 'fork')",
            "getattr(self, name)",
            "import os\no = os\no.getcwd()",
        ),
    ),
    ask(
        id="python.dynamic-import",
        reason="it imports a module by a name that can't be known beforehand",
        suggestion="import the module by its name",
        traits=("python.dynamic-import",),
        match=("__import__(name)", "import importlib\nimportlib.import_module(x)"),
        not_match=("__import__('json')", "import importlib\nimportlib.import_module('json')"),
    ),
)

READS_THE_WEB = r"requests\.(get|head)(\(\).*)?"

_NETWORK = listed("""
    requests.*, requests_*.*, urllib.request.*, urllib2.*, urllib3.*, httpx.*, httpcore.*, aiohttp.*, http.client.*,
    socket.*, ssl.wrap_socket, ssl.get_server_certificate, nltk.download, datasets.load_dataset,
    socketserver.*, ftplib.*, smtplib.*, aiosmtplib.*, imaplib.*, poplib.*, nntplib.*,
    telnetlib.*, xmlrpc.client.*, asyncio.open_connection, asyncio.open_unix_connection, webbrowser.*, websocket.*,
    websockets.*, paramiko.*, asyncssh.*, fabric.*, pysftp.*, boto3.*, botocore.*, aioboto3.*, google.cloud.*,
    gspread.*, azure.*, kubernetes.*, slack_sdk.*, slack.*, discord.*, telegram.*, tweepy.*, twilio.*, sendgrid.*,
    stripe.*, openai.*, anthropic.*, github.*, gitlab.*, jira.*, pycurl.*, grpc.*, dns.*, ldap3.*, huggingface_hub.*,
    psycopg.connect*, psycopg.*.connect*, psycopg2.connect*, asyncpg.*, pymysql.*, MySQLdb.*, mysql.connector.*,
    aiomysql.*, oracledb.*, cx_Oracle.*, pyodbc.*, pymssql.*, pymongo.*, motor.*, redis.*, aioredis.*, cassandra.*,
    elasticsearch.*, opensearchpy.*, clickhouse_*.*, snowflake.*, kafka.*, confluent_kafka.*, pika.*, celery.*, nats.*
""")

ON_THE_HOST = (
    on_host(
        id="python.starts",
        reason="it starts programs past what can be read here",
        suggestion="use subprocess.run with a list of words, which are read as a command",
        touches=EVERYTHING,
        calls=listed("""
            os.system, os.popen, os.exec*, os.spawn*, os.posix_spawn*, pty.spawn, subprocess.Popen*,
            subprocess.getoutput, subprocess.getstatusoutput, asyncio.create_subprocess_shell, commands.getoutput,
            popen2.*, pexpect.*, pip.main, pip._internal*, sh.*, plumbum.*, ctypes.*, cffi.*, git.Repo*, pygit2.*
        """),
        attributes=("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
        match=("import os\nos.system('ls')", "import subprocess\nsubprocess.Popen(['ls'])"),
        not_match=("import subprocess\nsubprocess.run(['git', 'status'])", "import os\nos.getcwd()"),
    ),
    on_host(
        id="python.eval",
        reason="it runs text as code (eval, exec, compile)",
        suggestion="write the code out; to read data, use json.loads or ast.literal_eval",
        touches=EVERYTHING,
        calls=("eval", "exec", "compile"),
        attributes=("eval", "exec", "compile"),
        match=("eval('1 + 1')", "exec(x)", "f = eval"),
        not_match=("model.eval()", "import re\nre.compile('x')", "import ast\nast.literal_eval(x)"),
    ),
    on_host(
        id="python.pickle",
        reason="it reads or writes objects that run code when they are read (pickle)",
        suggestion="use json",
        touches=EVERYTHING,
        calls=listed("""
            pickle.*, _pickle.*, cPickle.*, dill.*, cloudpickle.*, marshal.load*, shelve.*, joblib.load, torch.load,
            pandas.read_pickle, *.to_pickle, yaml.unsafe_load*
        """),
        traits=("python.unsafe-load",),
        match=("import pickle\npickle.load(f)",),
        not_match=("import json\njson.load(f)",),
    ),
    on_host(
        id="python.network",
        reason="it talks to another machine",
        suggestion="pass the data in as a file",
        touches=("network",),
        calls=_NETWORK,
        traits=("python.remote-file",),
        # Of the network's modules, what looks at this machine only, or just turns numbers and names around.
        unless=r"socket\.(gethostname|getfqdn|inet_\w+|htons|htonl|ntohs|ntohl|if_\w+)|requests\.(compat|utils|structures)\..*",
        match=(
            "import requests\nrequests.post(u, json=d)",
            "from urllib.request import urlopen\nurlopen(u)",
            "import smtplib\nsmtplib.SMTP('x')",
            "import pandas as pd\npd.read_csv('https://x.org/a.csv')",
        ),
        not_match=(
            "from urllib.parse import urlparse\nurlparse(u)",
            "import socket\nsocket.gethostname()",
            "import pandas as pd\npd.read_csv('a.csv')",
        ),
    ),
    on_host(
        id="python.database-write",
        reason="it changes data in a database",
        suggestion="read with SELECT, use a database in memory, or let a person run the change",
        touches=("files", "network"),
        calls=("*.to_sql", "session.commit", "*.session.commit", "sqlalchemy.orm.Session*.commit", "*.drop_all"),
        traits=("python.database-write",),
        match=(
            "import sqlite3\nsqlite3.connect('a.db').execute('DELETE FROM t')",
            "con.execute(f'DROP TABLE {t}')",
            "import psycopg\nc = psycopg.connect(d)\nc.cursor().executemany(sql, rows)",
        ),
        not_match=(
            "import sqlite3\nsqlite3.connect('a.db').execute('SELECT * FROM t')",
            "import sqlite3\nc = sqlite3.connect(':memory:')\nc.execute('CREATE TABLE t (a)')",
            "pool.execute(task)",
        ),
    ),
    on_host(
        id="python.removes",
        reason="it removes a directory with everything in it, or files that can't be known beforehand",
        suggestion="name the files to remove, or see what it would remove with an overlay",
        touches=("files",),
        calls=("shutil.rmtree", "*.rmtree", "os.removedirs", "send2trash.*"),
        attributes=("shutil.rmtree", "os.remove", "os.unlink", "os.rmdir", "pathlib.Path.unlink", "pathlib.Path.rmdir"),
        traits=("python.removes-unknown",),
        match=(
            "import shutil\nshutil.rmtree('build')",
            "import os\nos.remove(path)",
            "for p in found:\n    p.unlink()",
            "import os\nlist(map(os.remove, found))",
        ),
        not_match=("import os\nos.remove('a.txt')", "from pathlib import Path\nPath('a.txt').unlink()"),
    ),
    on_host(
        id="python.processes",
        reason="it ends processes, or acts on services of the machine",
        suggestion="end what it has started itself: process.terminate()",
        touches=("system",),
        calls=("os.kill*", "psutil.*.kill", "psutil.*.terminate", "docker.*", "podman.*", "libvirt.*", "dbus.*"),
        match=("import os\nos.kill(pid, 9)", "import docker\ndocker.from_env()"),
        not_match=("import os\nos.getpid()", "import psutil\npsutil.cpu_percent()"),
    ),
)

STANDARD = (*touching(*_ALWAYS, touches=EVERYTHING), *ON_THE_HOST)

SYNTAX = refuse(
    id="python.syntax",
    reason="it has a syntax error, so it can't run",
    suggestion="correct the syntax",
    traits=("python.syntax-error",),
    match=("def f(:",),
    not_match=("x = 1",),
)

_ALLOWED_IMPORTS = listed("""
    __future__, abc, array, base64, bisect, calendar, cmath, collections, copy, csv, dataclasses, datetime, decimal,
    enum, fractions, functools, graphlib, hashlib, heapq, itertools, json, keyword, math, numbers, operator, pprint,
    random, re, reprlib, secrets, statistics, string, textwrap, time, types, typing, unicodedata, uuid, zoneinfo,
    numpy, pandas, requests
""")

# A module of the allowlist holds others as plain attributes (`random._os`, `json.codecs`, `enum.sys`), and private
# helpers that run text (`dataclasses._create_fn`).
_SMUGGLED = tuple(
    form
    for module in listed("""
        os, _os, sys, _sys, subprocess, builtins, _builtins, bltns, importlib, shutil, socket, ctypes, ctypeslib,
        codecs, pickle, _pickle, io, posix, posixpath, pathlib, tempfile, threading, multiprocessing, inspect, gc,
        f2py, testing, tool, Path
    """)
    for form in (f"*.{module}", f"*.{module}.*")
) + tuple(f"{module}._[!_]*" for module in _ALLOWED_IMPORTS)

_DUNDERS = ("*.__*__", "*.__*__.*", "*.__*__(*", "*.__*__[[]*")
_HARMLESS_DUNDERS = (
    r"(.*\.)?__(init|name|doc|len|str|repr|eq|lt|version|post_init|iter|next|enter|exit|call|annotations)__|__debug__"
)
_RUNS_TEXT = listed("""
    *.eval, *.query, *.get_type_hints, *.ForwardRef, *.evaluate_forward_ref, functools.singledispatch*,
    string.Formatter*, operator.attrgetter, operator.methodcaller, *.CodeType, *.FunctionType, *.LambdaType
""")
_FILES = listed("""
    open, io.open, io.FileIO, pathlib.*, *.write_text, *.read_text, *.read_bytes, *.write_bytes, pandas.read_*,
    pandas.io.*, pandas.ExcelFile*, pandas.ExcelWriter*, pandas.HDFStore*, numpy.load*, numpy.save*, numpy.fromfile,
    numpy.fromregex, numpy.genfromtxt, numpy.recfrom*, numpy.memmap, numpy.DataSource*, numpy.lib.format*,
    numpy.lib.npyio*, *.tofile, *.dump, *.to_pickle, *.to_sql, *.to_hdf, *.to_excel
""")
_FRAMES = listed("""
    *.gi_frame*, *.cr_frame*, *.ag_frame*, *.tb_frame*, *.f_back*, *.f_globals*, *.f_locals*, *.f_builtins*,
    *.func_globals*, *.gi_code*, *.cr_code*, *.ag_code*
""")
_INTROSPECTION = listed("""
    globals, locals, vars, dir, getattr, setattr, delattr, input, breakpoint, help, memoryview, __import__,
    __loader__, __builtins__, __spec__, exit, quit, license, credits, copyright
""")

STRICT = (
    refuse(
        id="strict.import",
        reason="this module is not on the list of the strict policy",
        suggestion="use json, csv, re, datetime, math, collections, numpy, pandas and their like",
        imports=("*",),
        unless="(" + "|".join(_ALLOWED_IMPORTS) + r")(\..*)?",
        match=(
            "import os",
            "import subprocess as s",
            "from shutil import rmtree",
            "__import__('sys')",
            "from . import x",
        ),
        not_match=(
            "import json",
            "from datetime import date",
            "import numpy as np",
            "print('import os')",
            "os_name = 1",
        ),
    ),
    refuse(
        id="strict.smuggled-module",
        reason="it reaches a module that is not on the list through one that is",
        suggestion="use the module's own functions",
        imports=_SMUGGLED,
        calls=_SMUGGLED,
        attributes=_SMUGGLED,
        match=("import random\nrandom._os.system('ls')", "from json import codecs", "import enum\nx = enum.sys"),
        not_match=("import re\nre.compile('x')", "import math\nmath.sqrt(2)"),
    ),
    refuse(
        id="strict.call",
        reason="this call starts programs, runs text as code or reads objects that can: dangerous",
        suggestion="write the code out; to read data, use json.loads",
        calls=listed("""
            eval, exec, compile, os.*, sys.*, subprocess.*, shutil.*, pickle.*, cPickle.*, marshal.*, shelve.*,
            dill.*, $, $.*
        """),
        # A method of a text, a list or another value that is written out: `"a b".split()`. Not `x[0]()`, not a dunder.
        unless=r"\x00\.(?:[a-z]+|[a-z_]*[a-z])",
        attributes=listed("eval, exec, compile, os.*, subprocess.*, pickle.*"),
        match=("eval('1')", "exec(x)", "f = eval", "import pickle\npickle.loads(x)", "import os\nos.system('ls')"),
        not_match=("import re\nre.compile('x')", "'a b'.split()", "print('passo')"),
    ),
    refuse(
        id="strict.text-as-code",
        reason="it runs text as code, or reads attributes by names given as text",
        suggestion="write the expression out",
        calls=_RUNS_TEXT,
        attributes=(*_RUNS_TEXT, "str.format*", "*().format", "*().format_map"),
        match=("import typing\ntyping.get_type_hints(f)", "df.query('a > 1')", "map(str.format, x, y)"),
        not_match=("'{}'.format(1)", "import operator\noperator.itemgetter(1)"),
    ),
    refuse(
        id="strict.file",
        reason="it opens files",
        suggestion="pass the data in as text",
        calls=("*.open", *_FILES),
        attributes=_FILES,
        traits=("python.table-file",),
        unless=r"json\.dump",
        match=("open('x')", "f = open", "import io\nio.open('x')", "df.to_csv('x')", "f = df.to_csv"),
        not_match=("opened = True", "x = 'open(1)'", "df.to_csv()", "df.to_json(orient='records')"),
    ),
    refuse(
        id="strict.introspection",
        reason="it reaches into the interpreter, past what the policy can see",
        suggestion="use plain names and attributes",
        calls=(*_INTROSPECTION, *_DUNDERS, *_FRAMES),
        attributes=(*_INTROSPECTION, *_DUNDERS, *_FRAMES),
        unless=_HARMLESS_DUNDERS,
        match=(
            "x.__class__.__subclasses__()",
            "globals()",
            "getattr(x, 'y')",
            "__builtins__",
            "().__class__",
            "vars()",
            "input()",
            "breakpoint()",
            "f = getattr",
        ),
        not_match=(
            "super().__init__()",
            "if __name__ == '__main__':\n    print(1)",
            "variables = 1",
            "print('__class__')",
        ),
    ),
    refuse(
        id="strict.request",
        reason="the strict policy reads from the web, and does nothing else there",
        suggestion="use requests.get or requests.head",
        calls=("requests.*",),
        attributes=("requests.*",),
        imports=("requests",),
        # The module by itself, what reads from the web and what is done with the answer, and the errors to catch.
        unless=rf"requests|{READS_THE_WEB}|requests\.(exceptions(\..*)?|RequestException|HTTPError|Timeout|ConnectionError)",
        match=("import requests\nrequests.post(u, json=d)", "from requests import Session"),
        not_match=("import requests\nrequests.get(u).json()", "from requests import get\nget(u)"),
    ),
    ask(
        id="strict.operator",
        reason="the strict policy takes one plain command at a time: no `;`, `&&`, `||`, `|`, backquote or $()",
        suggestion="run the commands one by one",
        traits=("shell.operator",),
        match=("ls; pwd", "ls && pwd", "ls | wc", "echo $(pwd)", "echo `pwd`"),
        not_match=("ls -l", "echo 'a; b && c | d'"),
    ),
)

CORE = (
    refuse(
        id="core.import",
        reason="code of this profile imports nothing",
        suggestion="use what the language has built in",
        imports=("*",),
        match=("import json", "from math import pi"),
        not_match=("print('import json')",),
    ),
    refuse(
        id="core.length",
        reason="it is longer than the 1000 characters this profile takes",
        suggestion="split it into smaller pieces",
        longer_than=1000,
    ),
)

CORE_SUGGESTIONS = {
    **dict.fromkeys(("strict.import", "strict.smuggled-module", "python.dynamic-import"), CORE[0].suggestion),
    **dict.fromkeys(("python.dynamic-code", "python.eval", "script.text-as-code", "strict.call"), "write the code out"),
    **dict.fromkeys(
        ("python.dynamic-command", "python.starts", "python.processes", "script.starts-a-shell"),
        "leave it out: code here starts no programs",
    ),
    **dict.fromkeys(("script.secret", "script.assigned-secret", "script.unquoted-secret"), "leave the secret out"),
    **dict.fromkeys(
        ("strict.file", "strict.request", "python.network", "python.pickle"), "write the data into the code"
    ),
    "python.dynamic-attribute": "use plain names and attributes",
    "source.too-large": CORE[1].suggestion,
    "source.too-deep": "write it with less nesting",
}
"""By rule id: suggestions for `core`, where those of the wider packs name something that it refuses."""
