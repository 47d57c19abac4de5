"""Ordinary programs: files, archives, databases and memory."""

from __future__ import annotations

import gzip

from .ordinary_program import Program, python

PROGRAMS: tuple[Program, ...] = (
    python(
        "sqlite keeps a database in a file",
        """
        import sqlite3

        with sqlite3.connect("shop.db") as db:
            db.execute("pragma journal_mode = wal")
            db.execute("create table item (id integer primary key, name text unique, price real)")
            db.executemany("insert into item (name, price) values (?, ?)", [("café", 8.5), ("pão", 1.25), ("maçã", 3)])
        try:
            with db:
                db.execute("update item set price = price * 2")
                db.execute("insert into item (name) values ('pão')")
        except sqlite3.IntegrityError as error:
            print(error)
        db.close()
        db = sqlite3.connect("shop.db")
        db.row_factory = sqlite3.Row
        print([tuple(row) for row in db.execute("select name, price from item order by price desc")])
        print(db.execute("select name, sum(price) over (order by id) as running from item").fetchall()[-1]["running"])
        db.execute("pragma journal_mode = delete")
        """,
        """
        UNIQUE constraint failed: item.name
        [('café', 8.5), ('maçã', 3.0), ('pão', 1.25)]
        12.75
        """,
        brings={"shop.db": lambda data: data.startswith(b"SQLite format 3\0")},
    ),
    python(
        "sqlite in memory and from several threads",
        """
        import sqlite3
        import threading

        memory = sqlite3.connect(":memory:")
        memory.create_function("reverse", 1, lambda text: text[::-1])
        print(memory.execute("select reverse('amor')").fetchone())
        sqlite3.connect("log.db").execute("create table log (n)")

        def write(n):
            db = sqlite3.connect("log.db", timeout=60)
            for i in range(10):
                with db:
                    db.execute("insert into log values (?)", (n * 10 + i,))
            db.close()

        threads = [threading.Thread(target=write, args=(n,)) for n in range(5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        print(sqlite3.connect("log.db").execute("select count(*), sum(n) from log").fetchone())
        """,
        """
        ('roma',)
        (50, 1225)
        """,
    ),
    python(
        "temporary files and directories come and go",
        """
        import os
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x")
            open(path, "w").close()
            print(os.listdir(directory))
        print(os.path.exists(directory), tempfile.gettempdir())
        with tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
            file.write("temporary")
            file.seek(0)
            print(file.read(), file.name.endswith(".txt"))
        with tempfile.TemporaryFile() as nameless, tempfile.SpooledTemporaryFile(max_size=4) as spooled:
            nameless.write(b"12345")
            spooled.write(b"rolls over")
            spooled.seek(0)
            print(nameless.tell(), spooled.read())
        handle, path = tempfile.mkstemp()
        os.close(handle)
        os.unlink(path)
        """,
        """
        ['x']
        False /tmp
        temporary True
        5 b'rolls over'
        """,
    ),
    python(
        "files with names in every script",
        """
        import os
        from pathlib import Path

        for name in ("relatório final.txt", "日本語.md", "Ελλάδα", "🦜.bin", "with\\nnewline"):
            Path(name).write_text(name, encoding="utf-8")
        print(sorted(os.listdir()))
        print(all(Path(name).read_text(encoding="utf-8") == name for name in os.listdir()))
        os.mkdir(b"raw\\xff")
        print(sorted(name for name in os.listdir() if not name.isprintable()))
        os.rmdir(b"raw\\xff")
        """,
        """
        ['relatório final.txt', 'with\\nnewline', 'Ελλάδα', '日本語.md', '🦜.bin']
        True
        ['raw\\udcff', 'with\\nnewline']
        """,
        outputs=("*.txt", "日本語.md", "🦜.bin"),
        brings={
            "relatório final.txt": "relatório final.txt".encode(),
            "日本語.md": "日本語.md".encode(),
            "🦜.bin": "🦜.bin".encode(),
        },
    ),
    python(
        "pathlib, shutil and glob build, copy, move and find a tree",
        """
        import glob
        import os
        import shutil
        from pathlib import Path

        for name in ("a/one.py", "a/b/two.py", "a/b/three.txt"):
            Path("tree", name).parent.mkdir(parents=True, exist_ok=True)
            Path("tree", name).write_text(name)
        shutil.copytree("tree", "copy")
        shutil.move("copy/a/one.py", "moved.py")
        print(sorted(glob.glob("**/*.py", recursive=True)))
        print(sorted(p.as_posix() for p in Path("copy").rglob("*")))
        os.symlink("moved.py", "link")
        os.link("moved.py", "hard")
        print(os.readlink("link"), os.stat("hard").st_nlink, Path("link").resolve().name)
        os.chmod("hard", 0o640)
        print(oct(os.stat("moved.py").st_mode & 0o777), os.access("hard", os.W_OK), Path("hard").owner())
        os.utime("hard", (0, 86400))
        print(os.path.getmtime("moved.py"), shutil.disk_usage(".").total > 0, shutil.which("sh") is not None)
        shutil.rmtree("tree")
        print(sorted(os.listdir()), Path.cwd(), Path.home())
        """,
        """
        ['copy/a/b/two.py', 'moved.py', 'tree/a/b/two.py', 'tree/a/one.py']
        ['copy/a', 'copy/a/b', 'copy/a/b/three.txt', 'copy/a/b/two.py']
        moved.py 2 moved.py
        0o640 True guest
        86400.0 True True
        ['copy', 'hard', 'link', 'moved.py'] /workspace /tmp
        """,
    ),
    python(
        "zip and tar archives, packed and unpacked",
        """
        import os
        import shutil
        import tarfile
        import zipfile

        os.makedirs("in/sub")
        for i in range(3):
            with open(f"in/sub/{i}.txt", "w") as file:
                file.write(str(i) * 100)
        with zipfile.ZipFile("pack.zip", "w", zipfile.ZIP_DEFLATED) as pack:
            for i in range(3):
                pack.write(f"in/sub/{i}.txt")
            pack.writestr("extra.txt", "extra")
        print(zipfile.ZipFile("pack.zip").testzip(), zipfile.ZipFile("pack.zip").read("in/sub/2.txt")[:3])
        for mode in ("gz", "bz2", "xz"):
            with tarfile.open(f"pack.tar.{mode}", f"w:{mode}") as pack:
                pack.add("in")
            with tarfile.open(f"pack.tar.{mode}") as pack:
                pack.extraction_filter = getattr(tarfile, "data_filter", None)  # new in 3.11.4, asked for since 3.12
                pack.extractall(f"out-{mode}")
            print(mode, sorted(os.listdir(f"out-{mode}/in/sub")))
        shutil.make_archive("again", "zip", "in")
        shutil.unpack_archive("again.zip", "unpacked")
        print(os.path.getsize("unpacked/sub/1.txt"))
        """,
        """
        None b'222'
        gz ['0.txt', '1.txt', '2.txt']
        bz2 ['0.txt', '1.txt', '2.txt']
        xz ['0.txt', '1.txt', '2.txt']
        100
        """,
        brings={"pack.zip": lambda data: data.startswith(b"PK\3\4")},
    ),
    python(
        "gzip, bz2, lzma and zlib take in and give out",
        """
        import bz2
        import gzip
        import lzma
        import zlib

        with gzip.open("in.gz", "rt", encoding="utf-8") as file:
            text = file.read()
        print(text.strip(), zlib.crc32(text.encode()))
        data = text.encode() * 1000
        for module in (gzip, bz2, lzma, zlib):
            packed = module.compress(data)
            print(module.__name__, len(packed) < 500, module.decompress(packed) == data)
        with lzma.open("out.xz", "wb") as file:
            file.write(data)
        """,
        """
        compressão 2328263172
        gzip True True
        bz2 True True
        lzma True True
        zlib True True
        """,
        files={"in.gz": gzip.compress("compressão\n".encode(), mtime=0)},
        brings={"out.xz": lambda data: data.startswith(b"\xfd7zXZ\0")},
    ),
    python(
        "mmap of a file, and of memory of its own",
        """
        import mmap

        with open("map.bin", "wb") as file:
            file.write(b"abcdef" * 1000)
        with open("map.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            print(view.find(b"fab"), len(view))
            view[0:6] = b"ABCDEF"
            view.flush()
        print(open("map.bin", "rb").read(8))
        with mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory[:4] = b"mine"
            print(memory[:5])
        """,
        """
        5 6000
        b'ABCDEFab'
        b'mine\\x00'
        """,
    ),
    python(
        "memory without a file is shared with a child",
        """
        import mmap
        import os

        shared = mmap.mmap(-1, 4096)
        if os.fork() == 0:
            shared[:5] = b"child"
            os._exit(0)
        os.wait()
        print(shared[:5])
        """,
        "b'child'",
        shares_memory=True,
    ),
    python(
        "ctypes calls the C library",
        """
        import ctypes
        import ctypes.util

        libc = ctypes.CDLL("libc.so.6", use_errno=True)
        libc.strlen.restype = ctypes.c_size_t
        print(libc.strlen(b"quinze letras"), libc.abs(-5), libc.getpid() > 0)
        print(libc.open(b"/no/such/file", 0), ctypes.get_errno())
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
        numbers = (ctypes.c_int * 5)(5, 3, 1, 4, 2)
        libc.qsort(numbers, 5, ctypes.sizeof(ctypes.c_int), compare(lambda a, b: a[0] - b[0]))
        print(list(numbers), ctypes.util.find_library("c"))
        """,
        """
        13 5 True
        -1 2
        [1, 2, 3, 4, 5] libc.so.6
        """,
    ),
    python(
        "a file left open and unflushed is there when it is brought back",
        """
        log = open("log.txt", "w")
        log.write("written, never flushed, never closed")
        handle = open("data.bin", "wb", buffering=1 << 20)
        handle.write(bytes(range(256)))
        """,
        brings={"log.txt": b"written, never flushed, never closed", "data.bin": bytes(range(256))},
    ),
    python(
        "files are appended to, truncated, locked, sent and seen in holes",
        """
        import fcntl
        import os

        with open("given.txt", "a+") as file:
            file.write("more\\n")
            file.seek(0)
            print(file.read().split())
        with open("hole.bin", "wb") as file:
            file.seek(1 << 20)
            file.write(b"!")
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_UN)
        print(os.path.getsize("hole.bin"), os.stat("hole.bin").st_blocks * 512 < 1 << 20)
        with open("given.txt", "rb") as source, open("sent.txt", "wb") as target:
            print(os.sendfile(target.fileno(), source.fileno(), 0, 100))
        with open("sent.txt", "rb+") as file:
            file.truncate(5)
            os.posix_fallocate(file.fileno(), 0, 8)
        print(os.path.getsize("sent.txt"), [e.name for e in sorted(os.scandir(), key=lambda e: e.name) if e.is_file()])
        """,
        """
        ['given', 'more']
        1048577 True
        11
        8 ['given.txt', 'hole.bin', 'sent.txt']
        """,
        files={"given.txt": "given\n"},
        outputs=("*.txt",),
        brings={"given.txt": b"given\nmore\n", "sent.txt": b"given\0\0\0"},
    ),
    python(
        "who and where a program is",
        """
        import getpass
        import grp
        import os
        import platform
        import pwd

        print(os.getuid(), os.getgid(), getpass.getuser())
        print(pwd.getpwuid(os.getuid()).pw_dir, grp.getgrgid(os.getgid()).gr_name)
        print(os.getcwd(), os.environ["HOME"], os.environ["LANG"], os.path.expanduser("~/x"))
        print(platform.system(), os.cpu_count() >= 1, len(os.sched_getaffinity(0)) >= 1)
        print(open("/proc/self/comm").read().strip() != "", os.path.isdir(f"/proc/{os.getpid()}"))
        print(len(open("/dev/urandom", "rb").read(8)), open("/dev/null").read() == "", open("/dev/zero", "rb").read(2))
        """,
        """
        1000 1000 guest
        /tmp guest
        /workspace /tmp C.UTF-8 /tmp/x
        Linux True True
        True True
        8 True b'\\x00\\x00'
        """,
    ),
)
