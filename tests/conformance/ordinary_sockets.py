"""Ordinary programs: sockets on the loopback, TLS, HTTP, polling, and programs started by programs."""

from __future__ import annotations

import re

from .ordinary_program import Program, python

PROGRAMS: tuple[Program, ...] = (
    python(
        "a socket pair, TCP, UDP and abstract sockets on the loopback",
        """
        import socket
        import threading

        a, b = socket.socketpair()
        a.sendall(b"pair")
        print(b.recv(10))
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=lambda: server.accept()[0].sendall(b"tcp")).start()
            with socket.create_connection(server.getsockname(), timeout=30) as client:
                print(client.recv(10))
        here, there = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        here.bind(("127.0.0.1", 0))
        there.sendto(b"udp", here.getsockname())
        print(here.recvfrom(10)[0])
        with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as calling:
            listening.bind("\\0ordinary")
            listening.listen()
            calling.connect("\\0ordinary")
            calling.sendall(b"abstract")
            print(listening.accept()[0].recv(10))
        """,
        """
        b'pair'
        b'tcp'
        b'udp'
        b'abstract'
        """,
    ),
    python(
        "localhost has a name and an address",
        """
        import socket

        print(sorted({info[4][0] for info in socket.getaddrinfo("localhost", 80, socket.AF_INET)}))
        print(socket.gethostbyname(socket.gethostname()).startswith("127."), socket.getservbyname("https"))
        """,
        """
        ['127.0.0.1']
        True 443
        """,
    ),
    python(
        "a descriptor is passed through a unix socket",
        """
        import os
        import socket

        a, b = socket.socketpair()
        with open("note.txt", "w+") as note:
            note.write("passed")
            note.flush()
            socket.send_fds(a, [b"here"], [note.fileno()])
        message, descriptors, _, _ = socket.recv_fds(b, 10, 1)
        print(message, os.pread(descriptors[0], 10, 0))
        """,
        "b'here' b'passed'",
    ),
    python(
        "a web server and a client on the loopback",
        """
        import json
        import threading
        import urllib.error
        import urllib.request
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == "/ok" else 404)
                self.end_headers()
                self.wfile.write(json.dumps({"path": self.path}).encode())

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body[::-1])

            def log_message(self, *args):
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever).start()
            base = f"http://localhost:{server.server_port}"
            with urllib.request.urlopen(base + "/ok") as answer:
                print(answer.status, json.load(answer))
            with urllib.request.urlopen(base + "/x", data=b"abc") as answer:
                print(answer.read())
            try:
                urllib.request.urlopen(base + "/missing")
            except urllib.error.HTTPError as error:
                print(error.code)
                error.close()
            server.shutdown()
        """,
        """
        200 {'path': '/ok'}
        b'cba'
        404
        """,
    ),
    python(
        "ssl shakes hands over the loopback without a certificate",
        """
        import socket
        import ssl
        import threading

        def context(kind):
            made = ssl.SSLContext(kind)
            if kind is ssl.PROTOCOL_TLS_CLIENT:
                made.check_hostname = False
                made.verify_mode = ssl.CERT_NONE
            made.maximum_version = ssl.TLSVersion.TLSv1_2
            made.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
            return made

        def serve(server):
            connection, _ = server.accept()
            with context(ssl.PROTOCOL_TLS_SERVER).wrap_socket(connection, server_side=True) as tls:
                tls.sendall(tls.recv(100)[::-1])

        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=serve, args=(server,))
            thread.start()
            with socket.create_connection(server.getsockname()) as plain:
                with context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(plain) as tls:
                    tls.sendall(b"ping")
                    print(tls.recv(100), tls.version(), tls.cipher()[0])
            thread.join()
        print(ssl.create_default_context().verify_mode.name)
        """,
        """
        b'gnip' TLSv1.2 AECDH-AES256-SHA
        CERT_REQUIRED
        """,
    ),
    python(
        "ssl checks a certificate that openssl made",
        """
        import socket
        import ssl
        import subprocess
        import threading

        subprocess.run(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
            "-addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem".split(),
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain("cert.pem", "key.pem")

        def serve(server):
            for _ in range(2):
                try:
                    with context.wrap_socket(server.accept()[0], server_side=True) as tls:
                        tls.sendall(b"hello")
                except ssl.SSLError:
                    pass

        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=serve, args=(server,))
            thread.start()
            for trusted in ("cert.pem", None):
                trusting = ssl.create_default_context(cafile=trusted)
                try:
                    with socket.create_connection(server.getsockname()) as plain:
                        with trusting.wrap_socket(plain, server_hostname="localhost") as tls:
                            print(tls.recv(10), tls.version(), dict(tls.getpeercert()["subject"][0]))
                except ssl.SSLCertVerificationError as error:
                    print(error.verify_message)
            thread.join()
        """,
        re.compile(
            r"b'hello' TLSv1\.3 \{'commonName': 'localhost'\}\n"
            r"(self-signed certificate|unable to get local issuer certificate)\n"
        ),
        needs=("openssl",),
    ),
    python(
        "select, poll and epoll see what is ready",
        """
        import os
        import select
        import selectors
        import socket

        a, b = socket.socketpair()
        print(select.select([b], [], [], 0))
        a.send(b"x")
        print(select.select([b], [], [], 5)[0] == [b])
        poll = select.poll()
        poll.register(b, select.POLLIN)
        print(poll.poll(5000) == [(b.fileno(), select.POLLIN)])
        with select.epoll() as epoll:
            epoll.register(b, select.EPOLLIN | select.EPOLLET)
            print(len(epoll.poll(5)), epoll.poll(0.01))
        with selectors.DefaultSelector() as selector:
            selector.register(b, selectors.EVENT_READ, "name")
            print([key.data for key, _ in selector.select(5)])
        event = os.eventfd(3)
        print(os.eventfd_read(event))
        """,
        """
        ([], [], [])
        True
        True
        1 []
        ['name']
        3
        """,
    ),
    python(
        "subprocess: pipes, shell, checks, environment, directory, time-out",
        """
        import os
        import subprocess
        import sys

        print(subprocess.check_output(["echo", "um", "dois três"], text=True).strip())
        print(subprocess.check_output("printf '%s' b a c | fold -w1 | sort | tr -d '\\n'", shell=True))
        done = subprocess.run([sys.executable, "-c", "import os; print(os.environ['X'], os.getcwd())"],
                              env={"X": "valor"}, cwd="/tmp", capture_output=True, text=True)
        print(done.stdout.strip(), done.returncode, repr(done.stderr))
        try:
            subprocess.run(["false"], check=True)
        except subprocess.CalledProcessError as error:
            print(error.returncode)
        try:
            subprocess.run(["sleep", "60"], timeout=0.1)
        except subprocess.TimeoutExpired:
            print("late")
        try:
            subprocess.run(["no-such-program"])
        except FileNotFoundError as error:
            print(error.filename)
        first = subprocess.Popen(["seq", "5"], stdout=subprocess.PIPE)
        second = subprocess.Popen(["wc", "-l"], stdin=first.stdout, stdout=subprocess.PIPE)
        first.stdout.close()
        print(second.communicate()[0].strip(), first.wait())
        print(os.system("exit 3") >> 8, os.popen("echo popen").read().strip())
        """,
        """
        um dois três
        b'abc'
        valor /tmp 0 ''
        1
        late
        no-such-program
        b'5' 0
        3 popen
        """,
    ),
    python(
        "a child interpreter has the same packages and the same version",
        """
        import subprocess
        import sys

        def child(*arguments):
            return subprocess.check_output([sys.executable, *arguments], text=True).strip()

        import numpy

        print(child("-c", "import numpy; print(numpy.__version__)") == numpy.__version__)
        print(child("-c", "import sys; print(sys.version)") == sys.version)
        print(child("-c", "import sys; print(sys.prefix)") == sys.prefix)
        print(child("-m", "json.tool", "--compact", "data.json"))
        print(child("-m", "helper", "um", "dois"))
        print(child("-I", "-c", "import this").splitlines()[0])
        """,
        """
        True
        True
        True
        {"a":[1,2]}
        helper ran with ['um', 'dois']
        The Zen of Python, by Tim Peters
        """,
        files={
            "data.json": '{ "a": [1, 2] }',
            "helper.py": "import sys\nif __name__ == '__main__':\n    print('helper ran with', sys.argv[1:])\n",
        },
    ),
    python(
        "a child with an empty environment is the same interpreter",
        """
        import subprocess
        import sys

        code = "import sys, ssl, sqlite3, ctypes, numpy; print(sys.version, sys.prefix)"
        told = subprocess.check_output([sys.executable, "-c", code], env={}, text=True)
        print(told.strip() == f"{sys.version} {sys.prefix}")
        print(subprocess.check_output(["env", "-i", sys.executable, "-I", "-c", "print('clean')"], text=True).strip())
        """,
        """
        True
        clean
        """,
    ),
    python(
        "a program is compiled into bytecode and packed into an archive that runs",
        """
        import compileall
        import pathlib
        import subprocess
        import sys
        import zipapp

        app = pathlib.Path("/tmp/app")
        app.mkdir()
        (app / "__main__.py").write_text("import part; print(part.NAME)")
        (app / "part.py").write_text("NAME = 'packed'")
        print(compileall.compile_dir(app, quiet=1), len(list((app / "__pycache__").glob("*.pyc"))))
        zipapp.create_archive(app, "/tmp/app.pyz")
        print(subprocess.check_output([sys.executable, "/tmp/app.pyz"], text=True).strip())
        print(subprocess.check_output([sys.executable, "/tmp/app"], text=True).strip())
        """,
        """
        True 2
        packed
        packed
        """,
    ),
    python(
        "a virtual environment is made and used",
        """
        import subprocess
        import sys
        import venv

        venv.create("/tmp/env", symlinks=True, system_site_packages=False)
        code = "import sys; print(sys.prefix, sys.base_prefix != sys.prefix, [p for p in sys.path if 'site' in p])"
        print(subprocess.check_output(["/tmp/env/bin/python", "-c", code], text=True).strip())
        """,
        re.compile(r"/tmp/env True \['/tmp/env/lib/python3\.\d+/site-packages'\]\n"),
    ),
    python(
        "a terminal of its own",
        """
        import os
        import pty

        pid, master = pty.fork()
        if pid == 0:
            print(os.isatty(0), os.ttyname(0).startswith("/dev/pts/"), flush=True)
            os._exit(0)
        text = b""
        try:
            while data := os.read(master, 100):
                text += data
        except OSError:
            pass
        os.waitpid(pid, 0)
        print(text.decode().strip())
        """,
        "True True",
    ),
)
