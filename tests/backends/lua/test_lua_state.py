"""What a script finds in its Lua state, and what it does not, whatever it tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lupa.lua54 as lupa
import pytest
from lua_stage import Stage

from redoma.backends.lua import host
from redoma.models import Status


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("lua"))
    yield stage
    stage.close()


UNSAFE = (
    *("io", "package", "debug", "load", "loadfile", "dofile", "python", "warn"),
    *("os.execute", "os.remove", "os.rename", "os.tmpname", "os.getenv", "os.setlocale", "string.dump"),
)
FIND = """
local found = {}
for _, name in ipairs({%s}) do
  local value = _G
  for part in name:gmatch("%%a+") do value = value and value[part] end
  if value ~= nil then found[#found + 1] = name end
end
if (""):lower() and ("").dump then found[#found + 1] = "a string's dump" end
return table.concat(found, " ")
"""


def test_nothing_unsafe_is_there(stage: Stage) -> None:
    attack = FIND % ", ".join(f"{name!r}" for name in (*UNSAFE, "loadstring"))
    assert lupa.LuaRuntime().execute(attack) == f"{' '.join(UNSAFE)} a string's dump"  # in a state as lupa makes it
    result = stage.run(f"print('<' .. (function() {attack} end)() .. '>')")
    assert result.stdout == "<>\n"


@pytest.fixture
def broken_channel(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Makes a state in our own process, whose way out raises."""

    def ask(*_: object) -> None:
        raise ZeroDivisionError("the secret of Python")

    monkeypatch.setattr(host, "_ask", ask)
    return host.make


WALK = """
local seen, found, todo = {}, {}, {{"_G", _G}}
local function look(path, value)
  local kind = type(value)
  if kind == "userdata" then found[#found + 1] = path end
  if value ~= nil and not seen[value] and (kind == "table" or kind == "function" or kind == "string") then
    seen[value] = true
    todo[#todo + 1] = {path, value}
  end
end
local exec_there, exec = pcall(require, "exec")
if exec_there and type(exec) == "table" then
  look("exec", exec)
  look("get", (exec.get("no:such")))
  look("err", select(2, exec.get("no:such")))
end
look("a string", "")
look("a thread", (coroutine.running()))
local at = 0
while at < #todo do
  at = at + 1
  local path, value = todo[at][1], todo[at][2]
  look(path .. "!", getmetatable(value))
  if type(value) == "table" then
    for name, inner in next, value do
      look(path .. ".key", name)
      look(path .. "." .. tostring(name), inner)
    end
  elseif type(value) == "function" and select(2, path:gsub("%(%)", "")) < 2 then
    for _, given in ipairs({{}, {1}, {""}, {value}, {{}}, {function() end}, {0/0}}) do
      if not path:find("os.exit") and not path:find("read") and not path:find("error") then
        local results = table.pack(pcall(value, table.unpack(given)))
        for place = 1, results.n do look(path .. "()", results[place]) end
      end
    end
  end
end
table.sort(found)
"""


def test_no_python_object_can_be_reached(
    stage: Stage, broken_channel: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, their metatables, and what functions return or raise when they are called with this and that."""
    careless = b"world.ask, world.call = ask, function() ask() end\n"
    monkeypatch.setattr(host, "_WORLD", host._WORLD.replace(b"-- The run -", careless + b"-- The run -"))
    found, _ = broken_channel()(WALK + "error(table.concat(found, ' '), 0)", "naive")
    assert {"_G.ask", "_G.call()"} <= set(found.split())  # the function itself, and what it raises
    result = stage.run(WALK + "write('\\n') print(#todo > 100, #found, table.concat(found, ' '))")
    assert result.stdout.splitlines()[-1] == "true\t0\t", result


def test_what_python_raises_is_seen_by_nobody(broken_channel: Callable[[], Any]) -> None:
    naive = lupa.LuaRuntime(encoding="latin-1")
    naive.globals().ask = host._ask
    assert naive.execute("return type(select(2, pcall(ask, 1)))") == "userdata"  # it is what a script would get
    message, _ = broken_channel()(
        """
        local exec = require("exec")
        local seen = {select(2, exec.get("a:b")), select(2, pcall(print, 1)), select(2, pcall(os.exit)),
                      select(2, xpcall(print, function(problem) return problem end, 1))}
        for place = 1, 4 do seen[place] = type(seen[place]) .. ":" .. seen[place] end
        error(table.concat(seen, " "), 0)
        """,
        "x",
    )
    broken = "the channel to Redoma is broken"
    assert message == f"string:exec.get failed: {broken}. Next: check what it was given" + f" string:{broken}" * 3


def test_a_script_that_spoils_its_libraries_spoils_only_itself(stage: Stage) -> None:
    result = stage.run(
        """
        local type, exec = type, require("exec")
        for _, library in pairs({string, table, math, os, coroutine, utf8}) do
          for name in pairs(library) do library[name] = nil end
        end
        local print, everything = print, _G
        for name in next, everything do everything[name] = nil end
        local got, problem = exec.get("no:such")
        print(got, type(problem), ("").rep)
        """
    )
    assert result.stdout == "nil\tstring\tnil\n", result


def test_metatables_of_ours_are_closed(stage: Stage) -> None:
    result = stage.run(
        """
        print(getmetatable(""), pcall(setmetatable, require("exec"), {}))
        print(pcall(function() getmetatable("").__index = 1 end))
        """
    )
    assert result.stdout.splitlines()[0] == "string\tfalse\tcannot change a protected metatable"
    assert result.stdout.splitlines()[1].startswith("false")


def test_bytecode_is_not_loaded(stage: Stage) -> None:
    result = stage.run("\x1bLua\x54")
    assert result.status is Status.ERROR
    assert "attempt to load a binary chunk" in result.stderr


@pytest.mark.parametrize(
    ("source", "status", "exit_code"),
    [
        ("while true do pcall(function() while true do end end) end", Status.TIMEOUT, 124),
        ("pcall(string.find, ('a'):rep(40), ('a-'):rep(40) .. 'b')", Status.TIMEOUT, 124),
        ("t = {} while true do pcall(function() t[#t + 1] = ('x'):rep(1 << 20) .. #t end) end", Status.MEMORY, 137),
        ("while true do pcall(print, ('x'):rep(1 << 20)) end", Status.OUTPUT, 137),
    ],
    ids=["loop", "backtracking", "memory", "output"],
)
def test_limits_hold_though_a_script_catches_its_errors(
    stage: Stage, source: str, status: Status, exit_code: int
) -> None:
    limits = {"time": 1.0 if status is Status.TIMEOUT else 60.0, "memory": 64 << 20, "output_total": 4 << 20}
    result = stage.run(source, limits=limits)
    assert (result.status, result.shell_exit) == (status, exit_code), result


def test_one_huge_allocation_is_a_lack_of_memory_too(stage: Stage) -> None:
    source = "pcall(string.rep, 'x', 0x7fffffff) error('not reached')"
    assert stage.run(source, limits={"memory": 64 << 20}).status is Status.MEMORY
    # Without a control group, and on the host, the allocator refuses, in time to say so.
    source, limits = "local s = ('x'):rep(0x7fffffff)", {"memory": 64 << 20}
    assert stage.run(source, limits=limits, backend="native").stderr == "not enough memory\n"
    watched = stage.watched(source, limits=limits)
    assert (watched.status, watched.stderr) == (Status.MEMORY, "not enough memory\n")


def test_a_failing_script_says_where(stage: Stage) -> None:
    result = stage.run("#!/usr/bin/env redoma\nlocal function f() error('não dá') end\nlocal function g() f() end\ng()")
    assert (result.status, result.exit_code, result.exception) == (Status.ERROR, 1, "LuaError")
    assert result.error == "LuaError: script.lua:2: não dá"
    assert result.stderr.splitlines()[0] == "script.lua:2: não dá"
    assert result.stderr.splitlines()[-1].split() == ["script.lua:4:", "in", "main", "chunk"]
    assert "redoma" not in result.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("print(1)\nlocal = 2", "script.lua:2: <name> expected near '='"),
        ("error({})", "(an error that is a table)"),
        ("error(setmetatable({}, {__tostring = function() return 'told' end}))", "told"),
        ("error(setmetatable({}, {__tostring = function() error('again') end}))", "(an error that is a table)"),
        ("error()", "(an error that is a nil)"),
        ("require('socket')", "script.lua:1: module 'socket' is not here; there are coroutine, exec, math, os, "),
        ("coroutine.yield()", "attempt to yield from outside a coroutine"),
        ("local function f() return f() + 1 end f()", "script.lua:1: stack overflow"),
    ],
)
def test_whatever_it_fails_with_is_told_in_words(stage: Stage, source: str, message: str) -> None:
    result = stage.run(source)
    assert (result.status, result.exit_code) == (Status.ERROR, 1)
    assert result.stderr.startswith(message), result.stderr


def test_a_script_is_given_its_arguments_and_prints(stage: Stage) -> None:
    result = stage.run(
        """
        print(arg[0], arg[1], arg[2], #arg, ...)
        print(nil, true, 1.0, 2, ("ã"):byte(1, -1))
        write("no ", 1, " line end")
        """,
        "--one",
        "dois ã",
    )
    assert result.stdout == ("script.lua\t--one\tdois ã\t2\t--one\tdois ã\nnil\ttrue\t1.0\t2\t195\t163\nno 1 line end")
    assert (result.ok, result.backend) == (True, "jail")
    assert result.isolation.layers["interpreter"].startswith("Lua 5.4")
    assert "seccomp" in result.isolation.layers


@pytest.mark.parametrize(("code", "exit_code"), [("", 0), ("true", 0), ("false", 1), ("7", 7), ("3.0", 3)])
def test_a_script_can_choose_its_exit_status(stage: Stage, code: str, exit_code: int) -> None:
    assert stage.run(f"pcall(os.exit, {code}) print('not reached')" if code else "os.exit()").shell_exit == exit_code


def test_no_two_scripts_draw_the_same_numbers(stage: Stage) -> None:
    drawn = [stage.run("print(math.random(0))").stdout for _ in range(3)]
    assert len(set(drawn)) == 3


def test_on_the_host_it_is_the_same_state(stage: Stage) -> None:
    result = stage.run(WALK + "write('\\n') print(#found, io, arg[1])", "x", backend="native")
    assert (result.stdout.splitlines()[-1], result.backend) == ("0\tnil\tx", "native")
    assert stage.run("error('boom')", backend="native").stderr.startswith("script.lua:1: boom")
    assert "filesystem" in result.isolation.missing
