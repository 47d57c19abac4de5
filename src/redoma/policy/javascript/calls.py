"""The functions of Node's library, and the names of the language, that the reader of JavaScript knows."""

from __future__ import annotations

from ..facts import names

BUILT_IN = names("""
    assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns domain events
    fs http http2 https inspector module net os path perf_hooks process punycode querystring readline repl sqlite stream
    string_decoder sys test timers tls trace_events tty url util v8 vm wasi worker_threads zlib
""")
"""Modules that Node has built in. Code on a command line finds each of them under its name, without an import."""

GLOBAL_OBJECTS = names("globalThis global")
"""Names of the object that holds all global names."""
TELLING_GLOBALS = GLOBAL_OBJECTS | names("""
    eval Function require module process fetch WebSocket EventSource XMLHttpRequest Reflect Proxy WebAssembly
""")
"""Globals that matter wherever their name stands, also where a scope of the program may have another of that name."""

SENSITIVE = GLOBAL_OBJECTS | names("""
    child_process cluster fs inspector module process repl require vm worker_threads Reflect
""")
"""What must not be handed around: it holds functions that matter, which would then be called by any name."""

IMPORTERS = ("require", "_load", "getBuiltinModule", "binding", "_linkedBinding")
"""The last part of a name that, called with a text, gives a module."""

CODE_CALLS = names("eval Function vm.runInThisContext vm.runInNewContext vm.runInContext vm.Script vm.compileFunction")
"""What runs its texts as code; of `Function` and `vm.compileFunction` the texts are parameters and a body."""

SHELL_CALLS = names("child_process.exec child_process.execSync")
ARGV_CALLS = names("""
    child_process.spawn child_process.spawnSync child_process.execFile child_process.execFileSync
""")
STARTS = SHELL_CALLS | ARGV_CALLS | names("child_process.fork")

PASSING = names("util.promisify util.callbackify util.deprecate Object.freeze Promise.resolve structuredClone")
"""What gives back its first argument, more or less."""

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
"""Functions that write a file, without `Sync`, and which of their arguments it is."""
OPENERS = names("fs.open")
