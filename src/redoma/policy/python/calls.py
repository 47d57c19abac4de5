"""Functions of Python's library that the reader knows, as data: what starts commands, runs text, or touches files."""

from __future__ import annotations

SHELL_CALLS = frozenset(
    {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput"}
    | {"asyncio.create_subprocess_shell", "asyncio.subprocess.create_subprocess_shell", "popen2.popen2"}
)
ARGV_CALLS = frozenset(
    {"subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen"}
    | {"pty.spawn"}
)
SPREAD_CALLS = frozenset({"asyncio.create_subprocess_exec", "asyncio.subprocess.create_subprocess_exec"})
# Where the program stands among the arguments; what follows it is one list, or the words themselves.
EXEC_LISTS = {f"os.exec{kind}": 0 for kind in ("v", "ve", "vp", "vpe")} | {
    f"os.spawn{kind}": 1 for kind in ("v", "ve", "vp", "vpe")
}
EXEC_LISTS |= {"os.posix_spawn": 0, "os.posix_spawnp": 0}
EXEC_SPREAD = {name.replace("v", "l", 1): at for name, at in EXEC_LISTS.items() if "posix" not in name}
STARTS_COMMANDS = frozenset({*SHELL_CALLS, *ARGV_CALLS, *SPREAD_CALLS, *EXEC_LISTS, *EXEC_SPREAD})

# What is called like this on an object of unknown origin (a module out of a list, a C library) and is handed a
# constant string is read as a command too.
TELLING_METHODS = (".system", ".popen", ".getoutput", ".check_output", ".check_call", ".Popen")

TIMERS = frozenset({"timeit.timeit", "timeit.repeat", "timeit.Timer"})
CODE_CALLS = (
    TIMERS
    | {"eval", "exec", "compile", "pdb.run"}
    | {f"{module}.{function}" for module in ("cProfile", "profile") for function in ("run", "runctx")}
)
SENSITIVE_MODULES = frozenset({"os", "posix", "subprocess", "builtins", "__builtins__", "importlib", "pty", "ctypes"})

SENSITIVE_TABLES = ("sys.modules[", "__builtins__[", *(f"{module}.__dict__[" for module in SENSITIVE_MODULES))
SENSITIVE_DICTS = tuple(f"{module}.__dict__" for module in SENSITIVE_MODULES)
# What only looks at its arguments, or replaces a member of them, takes nothing out of a module it is handed.
LOOKERS = frozenset({"print", "repr", "str", "dir", "id", "type", "help", "isinstance", "issubclass"})
PATCHERS = frozenset(
    {"monkeypatch.setattr", "monkeypatch.delattr", "mocker.patch.object", "patch.object"}
    | {"mock.patch.object", "unittest.mock.patch.object"}
)

REMOVERS = {"os.remove": (), "os.unlink": (), "os.rmdir": (), "os.removedirs": (), "shutil.rmtree": ("-r", "-f")}
FOLLOWED = STARTS_COMMANDS | SENSITIVE_MODULES | REMOVERS.keys()
TARGETS = {"os.rename": 1, "os.replace": 1, "os.renames": 1, "shutil.copy": 1, "shutil.copy2": 1,
            "shutil.copyfile": 1, "shutil.copytree": 1, "shutil.move": 1, "os.mkdir": 0, "os.makedirs": 0,
            "os.truncate": 0, "os.mknod": 0, "os.mkfifo": 0, "os.chown": 0, "shutil.chown": 0,
            "shutil.make_archive": 0, "numpy.save": 0, "numpy.savez": 0, "numpy.savez_compressed": 0,
            "numpy.savetxt": 0, "logging.FileHandler": 0, "logging.handlers.RotatingFileHandler": 0,
            "logging.handlers.TimedRotatingFileHandler": 0, "logging.handlers.WatchedFileHandler": 0,
            "torch.save": 1, "joblib.dump": 1, "cv2.imwrite": 0, "imageio.imwrite": 0, "os.utime": 0}  # fmt: skip
PATH_WRITERS = (".write_text", ".write_bytes", ".touch", ".mkdir")
OPENERS = frozenset({"open", "io.open", "codecs.open", "io.FileIO", "gzip.open", "bz2.open", "lzma.open",
                     "tarfile.open", "zipfile.ZipFile", "aiofiles.open", "h5py.File"})  # fmt: skip
CHDIRS = frozenset({"os.chdir", "contextlib.chdir"})
READING_FLAGS = frozenset({"os", "O_RDONLY", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH"})
TARGET_KEYWORDS = ("dst", "path", "name", "filename", "file")
"""What the targets are called when they are not given by position."""
TABLE_WRITERS = (".to_csv", ".to_json", ".to_string", ".to_html", ".to_latex", ".to_markdown", ".to_xml",
                  ".to_parquet", ".to_feather", ".to_orc", ".to_stata", ".to_excel", ".to_hdf")  # fmt: skip
TABLE_PATHS = frozenset({"path_or_buf", "path_or_buffer", "path", "buf", "excel_writer", None})
TABLE_READERS = (".read_csv", ".read_json", ".read_table", ".read_excel", ".read_parquet", ".read_html", ".read_xml",
                  ".read_feather", ".read_fwf", ".scan_csv", ".scan_parquet", ".urlretrieve")  # fmt: skip
SAVERS = (".savefig", ".save", ".tofile", ".write_html", ".write_image")
IN_PLACE = frozenset({"fileinput.input", "fileinput.FileInput"})
TEMPORARY = {"tempfile.mkdtemp": 2, "tempfile.mkstemp": 2, "tempfile.TemporaryDirectory": 2,
             "tempfile.NamedTemporaryFile": 6, "tempfile.TemporaryFile": 6}  # fmt: skip
"""Where the directory stands among the arguments."""
SAFE_LOADERS = ("SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader", "FullLoader", "CFullLoader")
QUERY_READERS = (".read_sql", ".read_sql_query", ".read_sql_table")
MOVERS = frozenset({"os.rename", "os.renames", "os.replace", "shutil.move"})
UNPACKERS = (".extractall", ".unpack_archive")
STATEMENT_CALLS = (".execute", ".executemany", ".executescript", ".exec_driver_sql", ".copy_expert")
