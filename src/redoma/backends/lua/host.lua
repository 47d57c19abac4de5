-- The globals of a script, built up from an empty table: a script can use only what is listed here.
--
-- `ask` is a Python function, and the only way out of this state. It is a Python object whose attributes lead to
-- everything else, so only the closures below may hold it. Python exceptions arrive as objects too, so they are caught
-- here and never passed on. Only strings, numbers, booleans and nil cross the boundary, in both directions.
--
-- The script may change every table that it gets, including those of the libraries. So this file keeps all that it
-- needs in locals, and calls no string methods.

local ask, seed_1, seed_2 = ...

local error, next, pcall, rawequal, rawget, select, setmetatable, tostring, type, xpcall =
  error, next, pcall, rawequal, rawget, select, setmetatable, tostring, type, xpcall
local collectgarbage, load, traceback = collectgarbage, load, debug.traceback
local concat, unpack = table.concat, table.unpack
local find, format, sub = string.find, string.format, string.sub
local tointeger = math.tointeger

local PIECE = 128 * 1024 -- bytes sent at a time: JSON may need six for one, and a frame holds a million

math.randomseed(seed_1, seed_2) -- Lua's own seed is an address and the time, the same in all cells of a second

-- The channel ---------------------------------------------------------------------------------------------------------

local function out(...)
  local ran, done, value = pcall(ask, ...)
  if not ran then
    error("the channel to Redoma is broken", 0)
  end
  return done, value
end

-- Returns what the API's functions return: a value, true if there is none, or nil and an error message.
local function call(...)
  local done, value = out(...)
  if done then
    return value
  end
  return nil, value
end

local function wrong(what, got, hint)
  local shown = type(got) == "string" and format("%q", sub(got, 1, 60)) or type(got)
  return nil, format("%s, and got %s. Next: %s", what, shown, hint)
end

local function is_text(value)
  return type(value) == "string" or type(value) == "number"
end

-- Sends text in pieces, because the size of a frame is bounded.
local function send(method, text, ...)
  for start = 1, #text, PIECE do
    local done, problem = out(method, sub(text, start, start + PIECE - 1), ...)
    if not done then
      return nil, problem
    end
  end
  return true
end

-- The objects of the API ----------------------------------------------------------------------------------------------

-- Makes an object. Its methods work with a colon and with a dot: `executor:exec(…)`, `executor.exec(…)`. None raises.
local function object(kind, methods, last)
  local self = {}
  for name, method in next, methods do
    self[name] = function(first, ...)
      local results
      if rawequal(first, self) then
        results = { pcall(method, ...) }
      else
        results = { pcall(method, first, ...) }
      end
      if not results[1] then
        local why = type(results[2]) == "string" and results[2] or "it is not known why"
        return nil, format("%s.%s failed: %s. Next: check what it was given", kind, name, why)
      end
      if results[3] ~= nil then
        return results[2], results[3]
      end
      return results[2]
    end
  end
  return setmetatable(self, {
    __name = kind,
    __metatable = kind,
    __tostring = function()
      return kind
    end,
    __close = last and self[last],
  })
end

local function stream(process, name)
  return object("stream", {
    read = function(size)
      if size == "a" then
        local pieces = {}
        repeat
          local piece, problem = call("read", process, name, nil)
          if problem then
            return nil, problem
          end
          pieces[#pieces + 1] = piece
        until piece == nil
        return concat(pieces)
      end
      if size ~= nil and not (type(size) == "number" and tointeger(size) and size > 0) then
        return wrong('read takes nothing, a number of characters above 0, or "a"', size, 'write stream:read("a")')
      end
      return call("read", process, name, size and tointeger(size))
    end,
    close = function()
      return call("close_stream", process, name)
    end,
  }, "close")
end

local function process(id)
  local streams = {}
  local function stream_of(name)
    return function()
      streams[name] = streams[name] or stream(id, name)
      return streams[name]
    end
  end
  local function plain(method)
    return function()
      return call(method, id)
    end
  end
  return object("process", {
    stdout_stream = stream_of("stdout"),
    stderr_stream = stream_of("stderr"),
    start = plain("start"),
    write_stdin = function(data)
      if not is_text(data) then
        return wrong("write_stdin takes a string", data, 'write proc:write_stdin("text\\n")')
      end
      return send("write", tostring(data), id)
    end,
    close_stdin = plain("close_stdin"),
    signal = function(number)
      if not (type(number) == "number" and tointeger(number)) then
        return wrong("signal takes the number of a signal", number, "write proc:signal(15)")
      end
      return call("signal", id, tointeger(number))
    end,
    wait = plain("wait"),
    close = plain("close"),
  }, "close")
end

-- Appends the words of a command to `flat`. Returns their number; 0 for a command line given as one string.
local function add_command(flat, command)
  if type(command) == "string" then
    flat[1] = command
    return 0
  end
  local count = type(command) == "table" and #command or 0
  for place = 1, count do
    local word = rawget(command, place)
    if not is_text(word) then
      return nil
    end
    flat[place] = tostring(word)
  end
  return count > 0 and count or nil
end

local function add_env(flat, env)
  for name, value in next, env do
    if type(name) ~= "string" or not is_text(value) then
      return false
    end
    flat[#flat + 1] = name
    flat[#flat + 1] = tostring(value)
  end
  return true
end

local function executor(id)
  return object("executor", {
    exec = function(command, options)
      local flat = {}
      local count = add_command(flat, command)
      if not count then
        return wrong("exec takes a command", command, 'write executor.exec("git status"), or a table of its words')
      end
      if options ~= nil and type(options) ~= "table" then
        return wrong("exec takes a table of options", options, 'write {work_dir = "/srv", env = {NAME = "value"}}')
      end
      for name in next, options or {} do
        if name ~= "work_dir" and name ~= "env" then
          return wrong("exec takes the options work_dir and env", name, "use those")
        end
      end
      local work_dir, env = options and rawget(options, "work_dir"), options and rawget(options, "env")
      if work_dir ~= nil and type(work_dir) ~= "string" then
        return wrong("the option work_dir is a path", work_dir, 'write work_dir = "/srv"')
      end
      if env ~= nil and not (type(env) == "table" and add_env(flat, env)) then
        return wrong("the option env is a table of names and values", env, 'write env = {NAME = "value"}')
      end
      local made, problem = call("exec", id, work_dir, count, unpack(flat))
      if problem then
        return nil, problem
      end
      return process(made)
    end,
    release = function()
      return call("release", id)
    end,
  }, "release")
end

local exec = object("exec", {
  get = function(name)
    if type(name) ~= "string" then
      return wrong("exec.get takes the name of an executor", name, 'write exec.get("app:shell")')
    end
    local id, problem = call("get", name)
    if problem then
      return nil, problem
    end
    return executor(id)
  end,
})

-- The world of a script -----------------------------------------------------------------------------------------------

local function pick(from, ...)
  local picked = {}
  for place = 1, select("#", ...) do
    local name = select(place, ...)
    picked[name] = from[name]
  end
  return picked
end

local world = pick(
  _G,
  "_VERSION", "assert", "error", "getmetatable", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget", "rawlen",
  "rawset", "select", "setmetatable", "tonumber", "tostring", "type", "xpcall"
)
world._G = world
world.coroutine = pick(coroutine, "close", "create", "isyieldable", "resume", "running", "status", "wrap", "yield")
world.math = pick(
  math,
  "abs", "acos", "asin", "atan", "ceil", "cos", "deg", "exp", "floor", "fmod", "huge", "log", "max", "maxinteger", "min",
  "mininteger", "modf", "pi", "rad", "random", "randomseed", "sin", "sqrt", "tan", "tointeger", "type", "ult"
)
world.string = pick(
  string,
  "byte", "char", "find", "format", "gmatch", "gsub", "len", "lower", "match", "pack", "packsize", "rep", "reverse",
  "sub", "unpack", "upper"
)
world.table = pick(table, "concat", "insert", "move", "pack", "remove", "sort", "unpack")
world.utf8 = pick(utf8, "char", "charpattern", "codepoint", "codes", "len", "offset")
world.os = pick(os, "clock", "date", "difftime", "time")

function world.os.exit(code)
  if code == nil or code == true then
    code = 0
  elseif code == false then
    code = 1
  elseif not (type(code) == "number" and tointeger(code)) then
    error("os.exit takes a number, true or false", 2)
  end
  out("exit", tointeger(code))
end

function world.collectgarbage(option)
  if option == nil or option == "collect" or option == "count" then
    return collectgarbage(option)
  end
  error('collectgarbage takes "collect" or "count" here', 2)
end

local function write(text)
  local done, problem = send("print", text)
  if not done then
    error(problem, 0)
  end
end

function world.print(...)
  local texts = { ... }
  for place = 1, select("#", ...) do
    texts[place] = tostring(texts[place])
  end
  write(concat(texts, "\t") .. "\n")
end

function world.write(...)
  local texts = { ... }
  for place = 1, select("#", ...) do
    if not is_text(texts[place]) then
      error(format("write takes strings and numbers, and got a %s", type(texts[place])), 2)
    end
  end
  write(concat(texts))
end

local loaded = pick(world, "coroutine", "math", "os", "string", "table", "utf8")
loaded.exec = exec

function world.require(name)
  local module = rawget(loaded, name)
  if module == nil then
    error(format("module '%s' is not here; there are coroutine, exec, math, os, string, table and utf8", tostring(name)), 2)
  end
  return module
end

local of_strings = getmetatable("")
of_strings.__index = world.string -- the original has `dump`
of_strings.__metatable = "string"

local theirs = _G
for name in next, theirs do
  theirs[name] = nil -- no code of ours is compiled after this, and the script is compiled with `world` as its globals
end

-- The run -------------------------------------------------------------------------------------------------------------

local message, trace

local function describe(problem)
  if not is_text(problem) then
    local described, text = pcall(tostring, problem)
    local told = described and type(problem) == "table" and not find(text, "^table: 0x")
    problem = told and text or format("(an error that is a %s)", type(problem))
  end
  message, trace = tostring(problem), traceback(nil, 2)
  local _, last = find(trace, "in main chunk", 1, true)
  trace = sub(trace, 1, last or -1) -- the rest is our own frames
end

-- Returns nothing, or an error message and a traceback.
return function(source, name, ...)
  world.arg = { [0] = name, ... }
  local chunk, problem = load(source, "@" .. name, "t", world)
  if not chunk then
    return problem
  end
  local ran, failure = xpcall(chunk, describe, ...)
  if ran then
    return nil
  end
  if message then
    return message, trace
  end
  return type(failure) == "string" and failure or "an error in the handling of an error" -- out of memory or stack
end
