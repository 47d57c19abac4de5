"""Ordinary programs run under the system call filter, with nothing else of the jail around them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from pace import SLOW

FILTERED = """
import os, sys
from redoma.backends import linux
from redoma.backends.jail import seccomp
linux.allow_no_new_privileges()
linux.install_filter(seccomp.program(watched=sys.argv[1] == "watched"))
os.execvp(sys.argv[2], sys.argv[2:])
"""

# Each asserts for itself, and prints "fine" at its end.
PYTHON = {
    "threads": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(abs, range(100))) == 4950
        """,
    "subprocess": """
        import os, subprocess
        assert subprocess.check_output("echo hi | tr a-z A-Z", shell=True) == b"HI\\n"
        assert subprocess.Popen(["true"], close_fds=False).wait() == 0
        assert subprocess.Popen(["true"], start_new_session=True, cwd="/").wait() == 0
        assert os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1] == 0
        """,
    "multiprocessing": """
        import multiprocessing
        from multiprocessing import shared_memory
        if __name__ == "__main__":
            for way in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(way).Pool(2) as pool:
                    assert pool.map(abs, [-1, 2]) == [1, 2]
            block = shared_memory.SharedMemory(create=True, size=1000)
            block.close(); block.unlink()
            queue, value = multiprocessing.Queue(), multiprocessing.Value("i", 3)
            queue.put(value.value)
            assert queue.get() == 3
        """,
    "asyncio": """
        import asyncio
        async def echo(reader, writer):
            writer.write(await reader.readline())
            writer.close()
        async def main():
            process = await asyncio.create_subprocess_exec("echo", "hi", stdout=-1)
            assert (await process.communicate())[0] == b"hi\\n"
            async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"x\\n")
                assert await reader.readline() == b"x\\n"
                writer.close()
            assert await asyncio.to_thread(abs, -1) == 1
        asyncio.run(main())
        """,
    "sqlite": """
        import sqlite3
        database = sqlite3.connect("x.db")
        assert database.execute("pragma journal_mode=wal").fetchone() == ("wal",)
        database.execute("create table t (a)")
        database.executemany("insert into t values (?)", [(i,) for i in range(100)])
        database.commit()
        assert database.execute("select sum(a) from t").fetchone() == (4950,)
        """,
    "ssl, uuid, names": """
        import secrets, socket, ssl, uuid
        ssl.create_default_context()
        assert uuid.uuid1() != uuid.uuid4()
        assert len(secrets.token_bytes(5)) == 5
        assert socket.getaddrinfo("localhost", 80)
        """,
    "files": """
        import fcntl, mmap, os, shutil, tempfile
        with tempfile.TemporaryDirectory() as directory, open(directory + "/x", "w+b") as file:
            file.write(bytes(5000)); file.flush(); os.fsync(file.fileno()); os.sync()
            fcntl.flock(file, fcntl.LOCK_EX)
            with mmap.mmap(file.fileno(), 0) as view:
                view[0] = 1
            shutil.copy2(file.name, directory + "/y")
            assert open(directory + "/y", "rb").read(2) == b"\\1\\0"
        """,
    "a terminal with job control": """
        import os, pty
        output = b""
        def read(fd):
            global output
            data = os.read(fd, 1000)
            output += data
            return data
        # It goes on in the background until it has been listed.
        os.mkfifo("gate")
        script = "cat gate & jobs; { sleep 0.1; echo > gate; } & fg %1; wait; stty size; "
        script += "trap 'echo caught' USR1; kill -USR1 $BASHPID; ulimit -n; echo end"
        assert pty.spawn(["bash", "--norc", "-ic", script], read) == 0
        assert b"Running" in output and b"caught" in output and b"end" in output
        assert b"no job control" not in output
        """,
}

SHELL = {
    "bash": "set -m; coproc cat; echo hey >&${COPROC[1]}; read x <&${COPROC[0]}; test $x = hey; wc -l < <(echo x)",
    "tar": "mkdir d; echo x > d/x; ln -s x d/y; tar czf d.tgz d; rm -r d; tar xpf d.tgz;"
    " cp -a --sparse=always d e; cat e/y",
    "git": "git init -q r; cd r; echo a > a; git add .; git -c user.name=a -c user.email=b commit -qm x; git gc -q;"
    " git clone -q . ../s; git log --oneline | grep x",
    "gcc": "printf 'int main(void){return 7;}' > a.c; gcc -pipe -O2 a.c -o a; set +e; ./a; test $? = 7",
    "make": "printf 'all: a b\\n%%:\\n\\techo $@\\n' > Makefile; make -j2 all",
    "perl": "perl -MSocket -e 'socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die; exit 3 if !fork; wait;"
    " $? >> 8 == 3 or die'",
    "node": """node -e '
        const {Worker} = require("worker_threads"), http = require("http");
        require("child_process").execSync("true");
        require("fs").promises.readFile("/etc/passwd");
        new Worker("0", {eval: true});
        require("crypto").pbkdf2("a", "b", 10, 32, "sha1", (error, key) => { if (error) throw error; });
        const server = http.createServer((request, response) => response.end("x")).listen(0, "127.0.0.1", () =>
            http.get(server.address(), (response) => { response.resume(); server.close(); }));'""",
}

WATCHED = pytest.mark.parametrize("program", ["held", "watched"])


def run(program: str, directory: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FILTERED, program, *command],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120 * SLOW,
        check=False,
    )
    return f"{done.stdout}\nstatus {done.returncode}"


@WATCHED
@pytest.mark.parametrize("code", PYTHON.values(), ids=PYTHON)
def test_python_works(tmp_path: Path, code: str, program: str) -> None:
    (tmp_path / "program.py").write_text(dedent(code) + "\nif __name__ == '__main__': print('fine')\n")
    assert run(program, tmp_path, sys.executable, "program.py").endswith("fine\n\nstatus 0")


@WATCHED
@pytest.mark.parametrize("name", SHELL)
def test_it_works(tmp_path: Path, name: str, program: str) -> None:
    if not shutil.which(name):
        pytest.skip(f"needs {name}")
    assert run(program, tmp_path, "bash", "-ec", SHELL[name] + "\necho fine").endswith("fine\n\nstatus 0")
