"""What the reader of JavaScript finds. Every way around it that is listed here really runs in Node, in a cell."""

from __future__ import annotations

import json

import pytest

import redoma
from pace import SLOW
from redoma.models import Decision, Request
from redoma.models.reach import HOST, NOTHING
from redoma.policy import evaluate, load

TEXT = """const text = ["console.log('RAN')"].join();\n"""
RUNS_TEXT = {
    "eval": "eval(text)",
    "indirectly": "(0, eval)(text)",
    "by an escape": "\\u0065val(text)",
    "by a name made of parts": "globalThis['ev' + 'al'](text)",
    "of an alias of this": "(function () { const that = this; that.eval(text) })()",
    "optionally": "eval?.(text)",
    "by call": "eval.call(null, text)",
    "by apply": "eval.apply(null, [text])",
    "bound": "eval.bind(null)(text)",
    "handed on": "[text].map(eval)",
    "by Reflect": "Reflect.apply(eval, null, [text])",
    "aliased": "const e = eval; const f = e; f(text)",
    "destructured": "const {eval: e} = globalThis; e(text)",
    "chosen": "(1 ? eval : 0)(text)",
    "a default": "((e = eval) => e(text))()",
    "in an object": "const t = {e: eval}; t.e(text)",
    "in a list": "const [e] = [eval]; e(text)",
    "in a class": "class A { static e = eval }; A.e(text)",
    "another scope has such a name": "function other(eval) {}; eval(text)",
    "Function": "new Function(text)()",
    "constructed": "Reflect.construct(Function, [text])()",
    "constructor of a function": "(() => {}).constructor(text)()",
    "constructor by a text": "[]['con' + 'structor']['constructor'](text)()",
    "constructor of asynchronous functions": "(async () => {}).constructor(text)()",
    "constructor of generators": "Object.getPrototypeOf(function* () {}).constructor(text)().next()",
    "vm": "require('vm').runInThisContext(text)",
    "vm, built in": "process.getBuiltinModule('vm').runInThisContext(text)",
    "a module's compiler": "new (require('module'))('x')._compile(text, 'x')",
    "with": "with ({e: eval}) e(text)",
    "after what Node takes for a comment": "var x = 1\n--> ` \neval(text) // `",
    "in what looks like a comment": "// \u2028eval(text)",
    "a tag of a template": "const s = (_, t) => eval(t); s`${text}`",
    "a worker": "new (require('worker_threads').Worker)(text, {eval: true})",
}
SAY = "const say = text => console.log(String(text));\n"
STARTS = {
    "text": "const c = ['echo RAN'].join(); require('child_process').exec(c, (_, out) => say(out))",
    "a member": "const k = ['execSync'].join(); say(require('child_process')[k]('echo RAN'))",
    "a module": "const n = ['child_process'].join(); say(require(n).execSync('echo RAN'))",
    "of the main module": "say(process.mainModule.require('child_process').execSync('echo RAN'))",
    "by the loader": "say(require('module')._load('child_process').execSync('echo RAN'))",
    "handed to a function": "const f = m => m.execSync('echo RAN'); say(f(require('child_process')))",
    "copied": "const o = {...require('child_process')}; say(o.execSync('echo RAN'))",
    "in an object": "const o = {m: require('child_process')}; say(o.m.execSync('echo RAN'))",
    "returned": "const f = () => require('child_process'); say(f().execSync('echo RAN'))",
    "a promise": "import('child_process').then(m => say(m.execSync('echo RAN')))",
    "several promises": "Promise.all([import('child_process')]).then(([m]) => say(m.execSync('echo RAN')))",
    "a default": "((m = require('child_process')) => say(m.execSync('echo RAN')))()",
    "thrown": "try { throw require('child_process') } catch (m) { say(m.execSync('echo RAN')) }",
    "destructured": "const {execSync: e} = require('child_process'); say(e('echo RAN'))",
    "promisified": "require('util').promisify(require('child_process').exec)('echo RAN').then(o => say(o.stdout))",
    "a spawned shell": "require('child_process').spawn('echo RAN', {shell: true, stdio: 'inherit'})",
    "what Node offers without an import": "say(child_process.execSync('echo RAN'))",
}
ORDINARY = [
    "console.log(6 * 7)",
    "const fs = require('fs'); const text = fs.readFileSync('in.txt', 'utf8'); fs.writeFileSync('out.txt', text)",
    "import {readFile} from 'node:fs/promises'; const lines = (await readFile('a.csv', 'utf8')).split('\\n')",
    "class A { constructor(x) { this.x = x } clone() { return new this.constructor(this.x) } }",
    "const self = this; [1, 2].forEach(function (x) { log(self, x) })",
    "function walk(root) { visit(root); for (const child of root.children) walk(child); return root[key] }",
    "const path = require('path'); console.log(path.join(__dirname, 'a'), process.argv.slice(2), process.env.HOME)",
    "const {execFileSync} = require('child_process'); execFileSync('git', ['status'])",
    "const s = '<!-- a comment -->'; const html = `<p>${s}</p> -->`",
    "while (n --> 0) console.log(n)",
    "const m = /eval(x)/.exec(text); if (x instanceof Function && typeof eval === 'function') m.index",
    "x = a\n/b/g",
    "module.exports = {a: 1}; exports.b = 2; const data = require('./data.json')",
    "const handlers = {a() {}}; handlers[name](1)",
    "const total = items.map(({price, count = 1}) => price * count).reduce((a, b) => a + b, 0)",
]


def decide(code: str, pack: str = "standard") -> Decision:
    return evaluate(load(pack), Request(code=code, language="javascript"), reach=HOST).decision


WAYS = {
    **{f"runs text: {name}": TEXT + code for name, code in RUNS_TEXT.items()},
    **{f"starts: {name}": SAY + code for name, code in STARTS.items()},
}


@pytest.mark.parametrize("name", WAYS)
def test_no_way_around_the_reader_is_allowed_on_the_host(name: str) -> None:
    assert decide(WAYS[name]) is not Decision.ALLOW
    assert decide(WAYS[name], "strict") is Decision.FORBID


def test_each_of_these_ways_works() -> None:
    """Else it would prove nothing that it is found."""
    ways = list(WAYS.values())
    files = {f"way-{number}.cjs": code for number, code in enumerate(ways)}
    loop = """
const {spawnSync} = require('child_process');
const ran = [];
for (let at = 0; at < +process.argv[2]; at++) {
  const file = `way-${at}.cjs`;
  // Names of built-in modules are there without an import only for code on the command line, which is how code is run.
  const main = `process.argv[1] = '/workspace/${file}'; require('module').runMain()`;
  const {stdout} = spawnSync(process.execPath, ['-e', main], {encoding: 'utf8'});
  ran.push(stdout.includes('RAN'));
}
console.log(JSON.stringify(ran));
"""
    result = redoma.run(loop, "javascript", args=[str(len(ways))], files=files, timeout=60 * SLOW)
    assert result.ok, result
    ran = dict(zip(WAYS, json.loads(result.stdout), strict=True))
    assert [name for name, worked in ran.items() if not worked] == []


@pytest.mark.parametrize("code", ORDINARY)
def test_ordinary_code_is_allowed_on_the_host(code: str) -> None:
    evaluation = evaluate(load(), Request(code=code, language="javascript"), reach=HOST)
    assert evaluation.decision is Decision.ALLOW, evaluation.findings


@pytest.mark.parametrize(
    "code", ["const = 1", "eval(", "x <!-- y", "const a = <b>c</b>;", "function f( {", "`${", "'\n'", "/* x"]
)
def test_what_does_not_parse_is_never_allowed(code: str) -> None:
    assert decide(code) is not Decision.ALLOW
    assert decide(code, "script") is Decision.FORBID
    rules = {finding.rule for finding in evaluate(load(), Request(code=code, language="javascript")).findings}
    assert "javascript.syntax" in rules


def rules_of(code: str, pack: str = "standard") -> set[str]:
    return {finding.rule for finding in evaluate(load(pack), Request(code=code, language="javascript")).findings}


def test_commands_and_paths_of_a_program_are_judged_as_a_shell_s() -> None:
    assert decide("require('child_process').execSync('rm -rf /')") is Decision.FORBID
    assert decide("require('fs').rmSync('/', {recursive: true})") is Decision.FORBID
    assert decide("const {join} = require('path'); require('fs').writeFileSync(join('/etc', 'passwd'), '')") is not (
        Decision.ALLOW
    )
    assert "javascript.network" in rules_of("fetch('https://example.org')")


def test_strict_has_an_allowlist_of_modules() -> None:
    assert rules_of("const {inspect} = require('node:util'); console.log(inspect({}))", "strict") == set()
    for module in ("fs", "child_process", "http", "./own.js", "left-pad"):
        assert "strict.javascript-import" in rules_of(f"require('{module}')", "strict")
        assert "strict.javascript-import" in rules_of(f"import x from '{module}'", "strict")


def test_rules_about_python_leave_javascript_alone_and_the_reverse() -> None:
    assert rules_of("import_ = 1; exec('x'); open('x'); pickle.loads(x)", "strict") == set()
    python = evaluate(load("strict"), Request(code="import fs\nfs.rm('x')\n"))
    assert not any("javascript" in finding.rule for finding in python.findings)


def test_in_a_cell_there_is_nothing_to_ask_about() -> None:
    request = Request(code="require('child_process').exec(x)", language="javascript")
    assert evaluate(load(), request, reach=NOTHING).decision is Decision.ALLOW


@pytest.mark.parametrize(
    "code",
    [
        "x" + ".a" * 50_000,
        "f" + "()" * 50_000,
        "(" * 50_000 + "1" + ")" * 50_000,
        ";".join(f"a{i}=a{i + 1}||a{i + 1}" for i in range(2_000)),
        "`${" * 3_000 + "1" + "}`" * 3_000,
        "var {" + "a:{" * 5_000 + "b" + "}" * 5_000 + "} = require('fs')",
        "[" * 100_000,
        "x\n-->" * 20_000,
    ],
    ids=["members", "calls", "parentheses", "aliases", "templates", "patterns", "brackets", "comments"],
)
def test_no_text_is_too_much_for_the_reader(code: str) -> None:
    findings = evaluate(load(), Request(code=code, language="javascript")).findings
    assert "policy.unreadable" not in {finding.rule for finding in findings}


def test_characters_that_deceive_are_found() -> None:
    assert {"source.nul", "source.bad-utf8", "source.invisible"} <= rules_of("x = '\ud800\0\u202e'")
