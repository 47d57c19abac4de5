"""Tables of the Python functions that the reader knows: those that start commands, run text, or touch files."""

from __future__ import annotations

import re

from ...lib.patterns import lazy_pattern
from ..facts import names

SHELL_CALLS = names("""
    os.system os.popen subprocess.getoutput subprocess.getstatusoutput commands.getoutput popen2.popen2
    asyncio.create_subprocess_shell asyncio.subprocess.create_subprocess_shell
""")
ARGV_CALLS = names("""
    subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen pty.spawn
""")
SPREAD_CALLS = names("asyncio.create_subprocess_exec asyncio.subprocess.create_subprocess_exec")
# The position of the program among the arguments. Its own arguments follow, as one list or one by one.
EXEC_LISTS = {
    **dict.fromkeys(names("os.execv os.execve os.execvp os.execvpe os.posix_spawn os.posix_spawnp"), 0),
    **dict.fromkeys(names("os.spawnv os.spawnve os.spawnvp os.spawnvpe"), 1),
}
EXEC_SPREAD = {name.replace("v", "l", 1): at for name, at in EXEC_LISTS.items() if "posix" not in name}
STARTS_COMMANDS = frozenset({*SHELL_CALLS, *ARGV_CALLS, *SPREAD_CALLS, *EXEC_LISTS, *EXEC_SPREAD})

ENVIRONMENT_AT = {
    **dict.fromkeys(names("os.execve os.execvpe os.posix_spawn os.posix_spawnp"), 2),
    **dict.fromkeys(names("os.spawnve os.spawnvpe"), 3),
    **dict.fromkeys(names("os.execle os.execlpe os.spawnle os.spawnlpe"), -1),
    "subprocess.Popen": 10,
}
"""The position of the new program's variables among the arguments."""
ENVIRONMENTS = names("os.environ os.environb posix.environ")
COPIERS = names("""
    dict list sorted tuple set len iter print repr str copy.copy json.dumps json.dump pprint.pprint pprint.pformat
""")
"""Functions that don't change a dictionary that is passed to them."""
DECIDES_WHAT_RUNS = lazy_pattern(
    r"(?:os|posix)\.environb?\b|sys\.(?:path|meta_path|path_hooks|path_importer_cache|modules|executable)\b"
    r"|builtins\.|__builtins__\b|(?:.*\.)?__(?:path|import|loader|spec)__\b|importlib\b",
    re.DOTALL,
)
"""Names that determine which files are run. Setting one of them is reported."""
IMPORTERS = names("__import__ importlib.import_module importlib.__import__ runpy.run_module")

COMMAND_METHODS = (".system", ".popen", ".getoutput", ".check_output", ".check_call", ".Popen")
"""Methods of any object, such as a C library or a module from a list: if the first argument is a known string, it is
read as a command."""

TIMERS = names("timeit.timeit timeit.repeat timeit.Timer")
CODE_CALLS = TIMERS | names("eval exec compile pdb.run cProfile.run cProfile.runctx profile.run profile.runctx")
SENSITIVE_MODULES = names("os posix subprocess builtins __builtins__ importlib pty ctypes")
SENSITIVE_TABLES = ("sys.modules[", "__builtins__[", *(f"{module}.__dict__[" for module in SENSITIVE_MODULES))
SENSITIVE_DICTS = tuple(f"{module}.__dict__" for module in SENSITIVE_MODULES)
# Functions that only inspect their arguments or replace a member: a module passed to them can't be used by others.
INSPECTORS = names("print repr str dir id type help isinstance issubclass")
PATCHERS = names("""
    monkeypatch.setattr monkeypatch.delattr mocker.patch.object patch.object mock.patch.object
    unittest.mock.patch.object
""")

REMOVERS = {"os.remove": (), "os.unlink": (), "os.rmdir": (), "os.removedirs": (), "shutil.rmtree": ("-r", "-f")}
FOLLOWED = STARTS_COMMANDS | SENSITIVE_MODULES | REMOVERS.keys()
"""Names whose plain aliases are reported where they are used, not where they are bound."""
MOVERS = names("os.rename os.renames os.replace shutil.move")

TARGET_KEYWORDS = ("dst", "path", "name", "filename", "file")
TARGETS: dict[str, tuple[int, tuple[str, ...]]] = {
    name: (at, keywords)
    for at, keywords, listed in (
        (0, TARGET_KEYWORDS, """
            os.mkdir os.makedirs os.truncate os.mknod os.mkfifo os.chown shutil.chown shutil.make_archive numpy.save
            numpy.savez numpy.savez_compressed numpy.savetxt logging.FileHandler logging.handlers.RotatingFileHandler
            logging.handlers.TimedRotatingFileHandler logging.handlers.WatchedFileHandler cv2.imwrite imageio.imwrite
            os.utime"""),
        (1, TARGET_KEYWORDS, """
            os.rename os.replace os.renames shutil.copy shutil.copy2 shutil.copyfile shutil.copytree shutil.move
            torch.save joblib.dump"""),
        (1, ("path", "extract_dir"), "shutil.unpack_archive"),
        (99, ("filename",), "logging.basicConfig"),  # by keyword only
        (0, ("path",), "os.chdir contextlib.chdir"),  # relative paths then start there
        (2, ("dir",), "tempfile.mkdtemp tempfile.mkstemp tempfile.TemporaryDirectory"),
        (6, ("dir",), "tempfile.NamedTemporaryFile tempfile.TemporaryFile"),
    )
    for name in names(listed)
}  # fmt: skip
"""Functions that write a file or directory: the position of its path among the arguments, and the keywords for it."""
METHOD_TARGETS = {
    ".extractall": (0, ("path", "extract_dir")),
    ".unpack_archive": (0, ("path", "extract_dir")),
    ".extract": (1, ("path",)),
}
"""The same for methods, of any object."""
PATH_WRITERS = (".write_text", ".write_bytes", ".touch", ".mkdir")
OPENERS = names("""
    open io.open codecs.open io.FileIO gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile aiofiles.open h5py.File
""")
READING_FLAGS = names("os O_RDONLY O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_PATH")
"""Names in the flags of `os.open` that don't allow writing; `os` because of `os.O_RDONLY`."""
SAVERS = (".savefig", ".save", ".tofile", ".write_html", ".write_image")
IN_PLACE = names("fileinput.input fileinput.FileInput")

TABLE_WRITERS = tuple(
    f".to_{kind}" for kind in names("csv json string html latex markdown xml parquet feather orc stata excel hdf")
)
TABLE_PATHS = frozenset({"path_or_buf", "path_or_buffer", "path", "buf", "excel_writer", None})
"""Keywords of `TABLE_WRITERS` for the path; None for `**options`. Without a path, these methods return a string."""
TABLE_READERS = (
    *(f".read_{kind}" for kind in names("csv json table excel parquet html xml feather fwf")),
    *(".scan_csv", ".scan_parquet", ".urlretrieve"),
)
SAFE_LOADERS = ("SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader", "FullLoader", "CFullLoader")
QUERY_READERS = (".read_sql", ".read_sql_query", ".read_sql_table")
STATEMENT_CALLS = (".execute", ".executemany", ".executescript", ".exec_driver_sql", ".copy_expert")
