"""Tables of the JavaScript names that the reader knows: functions of Node's library, modules and globals."""

from __future__ import annotations

from ..facts import names

BUILT_IN = names("""
    assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns domain events
    fs http http2 https inspector module net os path perf_hooks process punycode querystring readline repl sqlite stream
    string_decoder sys test timers tls trace_events tty url util v8 vm wasi worker_threads zlib
""")
"""Built-in modules of Node. Code on a command line can use each by its name, without an import."""

GLOBAL_OBJECTS = names("globalThis global")
"""Names of the global object."""
WATCHED_GLOBALS = GLOBAL_OBJECTS | names("""
    eval Function require module process fetch WebSocket EventSource XMLHttpRequest Reflect Proxy WebAssembly
""")
"""Globals that are reported wherever their name occurs, even if the program may bind the name in some scope."""

SENSITIVE = GLOBAL_OBJECTS | names("""
    child_process cluster fs inspector module process repl require vm worker_threads Reflect
""")
"""Modules and objects that must not be passed on: their functions could then be called by any name."""

IMPORTERS = ("require", "_load", "getBuiltinModule", "binding", "_linkedBinding")
"""Last parts of the names of functions that take a module's name and return the module."""

CODE_CALLS = names("eval Function vm.runInThisContext vm.runInNewContext vm.runInContext vm.Script vm.compileFunction")
"""Functions that run or compile their texts as code. Those of `Function` and `vm.compileFunction` are parameters and a
body."""

SHELL_CALLS = names("child_process.exec child_process.execSync")
ARGV_CALLS = names("""
    child_process.spawn child_process.spawnSync child_process.execFile child_process.execFileSync
""")
STARTS = SHELL_CALLS | ARGV_CALLS | names("child_process.fork")

PASSING = names("util.promisify util.callbackify util.deprecate Object.freeze Promise.resolve structuredClone")
"""Functions that return their first argument, or an equivalent of it."""

REMOVERS = names("fs.rm fs.rmdir fs.unlink")
WRITERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        names("""
            fs.writeFile fs.appendFile fs.createWriteStream fs.mkdir fs.mkdtemp fs.truncate fs.utimes fs.lutimes
            fs.chown fs.lchown fs.chmod fs.lchmod
        """),
        (0,),
    ),
    **dict.fromkeys(names("fs.copyFile fs.cp fs.symlink fs.link"), (1,)),
    "fs.rename": (0, 1),
}
"""Functions that write files, named without `Sync`, with the positions of the paths among their arguments."""
OPENERS = names("fs.open")
