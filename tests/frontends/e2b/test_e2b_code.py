"""run_code and its contexts."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from e2b import InvalidArgumentException, NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Context, Sandbox

from pace import SLOW

pytestmark = pytest.mark.usefixtures("pointed")

RICH = """
class Rich:
    def _repr_html_(self): return "<b>1</b>"
    def _repr_markdown_(self): return "**1**"
    def _repr_svg_(self): return "<svg></svg>"
    def _repr_latex_(self): return "$1$"
    def _repr_json_(self): return {"a": [1, None]}
    def _repr_png_(self): return b"\\x89PNG..."
    def _repr_jpeg_(self): return b"jpeg"
    def __repr__(self): return "Rich()"
"""


def test_variables_stay_and_the_last_expression_is_the_result(shared: Sandbox) -> None:
    shared.run_code("x = [1, 2]")
    execution = shared.run_code("print('printed'); x")
    assert execution.text == "[1, 2]"
    assert execution.results[0].is_main_result
    assert execution.logs.stdout == ["printed\n"]
    assert (execution.logs.stderr, execution.error) == ([], None)
    assert shared.run_code("x;").results == []
    assert shared.run_code("'text'").text == "text"  # without its quotes, as E2B has it
    assert shared.run_code("").results == []


def test_code_may_be_indented_and_have_lines_for_the_shell_alone(shared: Sandbox) -> None:
    assert shared.run_code("\n\n    x = 5\n    if x:\n        x += 1\n    x\n    ").text == "6"
    assert "".join(shared.run_code("!pwd\n!echo two").logs.stdout) == "/home/user\ntwo\n"


def test_executions_are_counted(sandbox: Sandbox) -> None:
    assert [sandbox.run_code("1").execution_count for _ in range(3)] == [1, 2, 3]


def test_a_result_has_all_its_representations(shared: Sandbox) -> None:
    execution = shared.run_code(f"{RICH}\ndisplay(Rich())\nprint('between')\nRich()")
    shown, main = execution.results
    assert not shown.is_main_result
    assert main.is_main_result
    for result in (shown, main):
        assert (result.text, result.html, result.markdown) == ("Rich()", "<b>1</b>", "**1**")
        assert (result.svg, result.latex, result.json) == ("<svg></svg>", "$1$", {"a": [1, None]})
        assert result.png is not None
        assert base64.b64decode(result.png) == b"\x89PNG..."
        assert result.jpeg is not None
    assert {"text", "html", "png", "json"} <= set(main.formats())


def test_a_figure_is_a_picture(shared: Sandbox) -> None:
    execution = shared.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    (figure,) = [result for result in execution.results if result.png]
    assert figure.png is not None
    assert base64.b64decode(figure.png).startswith(b"\x89PNG\r\n")


CHARTS = {
    "line": "plt.plot([1, 2, 3], [4, 5, 6], label='a')\nplt.xlabel('Time (s)')\nplt.ylabel('Size [m]')\nplt.title('T')",
    "scatter": "plt.scatter([1, 2], [3, 4], label='s')",
    "bar": "plt.bar(['a', 'b'], [3, 4], label='g')",
    "pie": "plt.pie([1, 3], labels=['x', 'y'])",
    "box_and_whisker": "plt.boxplot([[1, 2, 3, 4, 50], [2, 3, 4]], tick_labels=['p', 'q'])",
    "superchart": "f, (a, b) = plt.subplots(1, 2)\na.plot([1], [2])\nb.bar(['z'], [1])\nf.suptitle('both')",
    "unknown": "plt.imshow([[1, 2], [3, 4]])",
}


def test_a_chart_has_its_data(shared: Sandbox) -> None:
    found: dict[str, Any] = {}
    for kind, code in CHARTS.items():
        results = shared.run_code(f"import matplotlib.pyplot as plt\n{code}\nplt.show()").results
        (found[kind],) = [result.chart for result in results if result.chart]
        assert found[kind].type.value == kind
    line = found["line"]
    assert (line.title, line.x_label, line.x_unit, line.y_unit) == ("T", "Time (s)", "s", "m")
    assert (line.elements[0].label, line.elements[0].points) == ("a", [(1, 4), (2, 5), (3, 6)])
    assert line.x_scale.value == "linear"
    assert len(line.x_ticks) == len(line.x_tick_labels) > 1
    assert found["scatter"].elements[0].points == [(1, 3), (2, 4)]
    bars = [(each.label, each.group, each.value) for each in found["bar"].elements]
    assert bars == [("a", "g", 3), ("b", "g", 4)]
    assert [(each.label, each.angle, each.radius) for each in found["pie"].elements] == [("x", 90, 1), ("y", 270, 1)]
    box = found["box_and_whisker"].elements[0]
    assert (box.label, box.min, box.first_quartile, box.median, box.third_quartile, box.max) == ("p", 1, 2, 3, 4, 4)
    assert box.outliers == [50]
    filled = "data = [[1, 2, 3], [4, 5, 6]]\nplt.boxplot(data)\nplt.boxplot(data, patch_artist=True)\nplt.show()"
    (chart,) = [
        each.chart for each in shared.run_code(f"import matplotlib.pyplot as plt\n{filled}").results if each.chart
    ]
    assert [(each.min, each.median, each.third_quartile) for each in chart.elements] == [(1, 2, 2.5), (4, 5, 5.5)]
    assert found["superchart"].title == "both"
    assert [each.type.value for each in found["superchart"].elements] == ["line", "bar"]


def test_a_table_is_html(shared: Sandbox) -> None:
    result = shared.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})").results[0]
    assert result.is_main_result
    assert result.html is not None
    assert "<table" in result.html
    assert result.data == {"a": [1, 2]}
    assert result.text is not None
    assert "a" in result.text


def test_an_exception_has_a_name_a_value_and_its_traceback_apart(shared: Sandbox) -> None:
    execution = shared.run_code("def f():\n    raise KeyError('no')\nf()")
    assert execution.error is not None
    assert (execution.error.name, execution.error.value) == ("KeyError", "'no'")
    assert "line 2, in f" in execution.error.traceback
    assert execution.logs.stderr == []
    syntax = shared.run_code("1 +").error
    assert syntax is not None
    assert syntax.name == "SyntaxError"
    left = shared.run_code("import sys; sys.exit(3)").error
    assert left is not None
    assert (left.name, left.value) == ("SystemExit", "3")


def test_callbacks_are_called_as_it_goes_on(shared: Sandbox) -> None:
    heard: list[Any] = []
    shared.run_code(
        "import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\ndisplay(5)\n1 / 0",
        on_stdout=lambda message: heard.append(("stdout", message.line, message.error)),
        on_stderr=lambda message: heard.append(("stderr", message.line, message.error)),
        on_result=lambda result: heard.append(("result", result.text)),
        on_error=lambda error: heard.append(("error", error.name)),
    )
    assert sorted(heard) == sorted(
        [("stdout", "out\n", False), ("stderr", "err\n", True), ("result", "5"), ("error", "ZeroDivisionError")]
    )
    assert heard[-1] == ("error", "ZeroDivisionError")


def test_output_comes_before_the_end(shared: Sandbox) -> None:
    code = "import os, time\nprint(1)\nwhile not os.path.exists('heard'): time.sleep(0.05)\n'went on'"
    execution = shared.run_code(code, on_stdout=lambda _: shared.files.write("heard", ""), timeout=120 * SLOW)
    assert execution.text == "went on"


def test_all_of_a_long_output_comes(shared: Sandbox) -> None:
    execution = shared.run_code("for n in range(60000): print('line', n)")
    assert "".join(execution.logs.stdout).splitlines() == [f"line {n}" for n in range(60000)]


def test_variables_of_the_environment(shared: Sandbox) -> None:
    code = "import os; os.environ.get('GIVEN'), os.environ.get('ONCE'), os.environ['HOME']"
    assert shared.run_code(code, envs={"ONCE": "now"}).text == "('at start', 'now', '/home/user')"
    assert shared.run_code(code).text == "('at start', None, '/home/user')"
    assert shared.run_code(code, envs={"GIVEN": "other"}).text == "('other', None, '/home/user')"
    assert shared.run_code(code).text == "('at start', None, '/home/user')"


def test_bash_is_a_language(shared: Sandbox) -> None:
    assert shared.run_code("echo $((6 * 7))", language="bash").logs.stdout == ["42\n"]
    failed = shared.run_code("exit 4", language="bash").error
    assert failed is not None
    assert failed.value == "4"
    with pytest.raises(SandboxException, match="languages are"):
        shared.run_code("1", language="cobol")


def test_contexts_have_variables_and_directories_of_their_own(sandbox: Sandbox) -> None:
    (default,) = sandbox.list_code_contexts()
    assert (default.language, default.cwd) == ("python", "/home/user")
    sandbox.files.make_dir("inner")
    context = sandbox.create_code_context(cwd="/home/user/inner")
    assert context.cwd == "/home/user/inner"
    sandbox.run_code("x = 1")
    assert sandbox.run_code("'x' in globals()", context=context).text == "False"
    assert sandbox.run_code("x = 2; import os; os.getcwd()", context=context).text == "/workspace/inner"
    assert sandbox.run_code("x, __import__('os').getcwd()").text == "(1, '/workspace')"
    assert sandbox.run_code("x", context=default).text == "1"
    assert sandbox.run_code("x", context=context).execution_count == 3
    assert {each.id for each in sandbox.list_code_contexts()} == {default.id, context.id}
    sandbox.restart_code_context(context)
    assert sandbox.run_code("'x' in globals()", context=context).text == "False"
    assert sandbox.run_code("x").text == "1"
    sandbox.remove_code_context(context)
    with pytest.raises(NotFoundException):
        sandbox.run_code("x", context=context)
    with pytest.raises(InvalidArgumentException):
        sandbox.run_code("x", context=default, language="python")
    assert sandbox.create_code_context(cwd="new/one").cwd == "/home/user/new/one"
    assert sandbox.files.exists("new/one")
    with pytest.raises(SandboxException, match=r"[Rr]ead-only|denied"):
        sandbox.create_code_context(cwd="/nowhere")
    with pytest.raises(NotFoundException):
        sandbox.restart_code_context("nonsense")


def test_restarting_the_default_context_forgets_its_variables(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    sandbox.restart_code_context(sandbox.list_code_contexts()[0])
    error = sandbox.run_code("x").error
    assert error is not None
    assert error.name == "NameError"
    assert sandbox.run_code("display(1); __name__").text == "__main__"


def test_code_whose_client_has_given_up_is_interrupted_and_the_sandbox_goes_on(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time\nwhile True: time.sleep(0.1)", timeout=1)
    assert sandbox.run_code("x", timeout=30 * SLOW).text == "1"


def test_code_that_takes_too_much_memory_ends_its_sandbox_and_says_so(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("x = bytearray(10**9)")
    if execution.error is None or execution.error.name != "MemoryError":
        pytest.fail(f"{execution}")


def test_what_policy_forbids_is_an_error_with_the_reason(shared: Sandbox) -> None:
    execution = shared.run_code("destroy-it now", language="bash")
    assert execution.error is not None
    assert execution.error.name == "Refused"
    assert "nobody does this" in execution.error.value


async def test_the_same_calls_without_blocking(asandbox: AsyncSandbox) -> None:
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.line)

    await asandbox.run_code("x = 1")
    execution = await asandbox.run_code("print('hi')\nx + 1", on_stdout=hear)
    assert (execution.text, heard) == ("2", ["hi\n"])
    error = (await asandbox.run_code("1 / 0")).error
    assert error is not None
    assert error.name == "ZeroDivisionError"
    context: Context = await asandbox.create_code_context()
    assert (await asandbox.run_code("'x' in globals()", context=context)).text == "False"
    assert len(await asandbox.list_code_contexts()) == 2
    await asandbox.restart_code_context(context)
    await asandbox.remove_code_context(context)
    with pytest.raises(TimeoutException):
        await asandbox.run_code("while True: pass", timeout=1)
    assert (await asandbox.run_code("x", timeout=30 * SLOW)).text == "1"
