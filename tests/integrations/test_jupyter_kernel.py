"""The kernel, driven by jupyter_client and by nbclient as notebooks are."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from pace import SLOW

PATIENCE = 60 * SLOW


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redoma: Callable[..., tuple[int, str, str]]) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    assert redoma("kernel", "install")[0] == 0
    spec = json.loads((tmp_path / "jupyter" / "kernels" / "redoma" / "kernel.json").read_text())
    assert spec["argv"][:3] == [sys.executable, "-m", "redoma.integrations.jupyter"]


@pytest.fixture
def manager(installed: None) -> Iterator[KernelManager]:
    manager = KernelManager(kernel_name="redoma")
    manager.start_kernel()
    try:
        yield manager
    finally:
        manager.shutdown_kernel()
        manager.context.destroy()


@pytest.fixture
def client(manager: KernelManager) -> Iterator[BlockingKernelClient]:
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield client
    finally:
        client.stop_channels()


def run(client: BlockingKernelClient, code: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A cell's reply, and what it published."""
    published: list[dict[str, Any]] = []
    reply = client.execute_interactive(code, timeout=PATIENCE, output_hook=published.append)
    return reply["content"], [{"type": each["msg_type"], **each["content"]} for each in published]


def of_type(published: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in published if each["type"] == kind]


def test_cells_run_in_one_session(client: BlockingKernelClient) -> None:
    assert run(client, "x = 41; print('hi')")[0]["status"] == "ok"
    reply, published = run(client, "x + 1")
    assert reply["status"] == "ok"
    assert of_type(published, "execute_result")[0]["data"] == {"text/plain": "42"}
    _, published = run(client, "!echo bash; pwd")
    assert of_type(published, "stream")[0]["text"].startswith("bash\n")
    reply, published = run(client, "1 / 0")
    assert (reply["status"], reply["ename"]) == ("error", "ZeroDivisionError")
    assert of_type(published, "error")
    _, published = run(client, "import os; sorted(os.listdir('/root')) if os.path.exists('/root') else []")
    assert of_type(published, "execute_result")[0]["data"]["text/plain"] == "[]"  # nobody's home is there
    client.complete("x.bit_l", 7)
    reply = client.get_shell_msg(timeout=PATIENCE)["content"]
    assert "x.bit_length" in reply["matches"]


def test_a_cell_can_be_interrupted_and_the_session_goes_on(
    client: BlockingKernelClient, manager: KernelManager
) -> None:
    run(client, "x = 1")
    sent = client.execute("import time\nprint('going', flush=True)\ntime.sleep(1000)", stop_on_error=False)
    while client.get_iopub_msg(timeout=PATIENCE)["msg_type"] != "stream":
        pass
    manager.interrupt_kernel()
    while (reply := client.get_shell_msg(timeout=PATIENCE))["parent_header"]["msg_id"] != sent:
        pass
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")
    assert run(client, "x")[0]["status"] == "ok"


def test_a_notebook_is_executed_with_its_figure(installed: None, tmp_path: Path) -> None:
    figure = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()"
    cells = [nbformat.v4.new_code_cell(each) for each in ("n = 20", figure, "n + 22")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, kernel_name="redoma", timeout=int(PATIENCE)).execute()
    shown = [output for output in notebook.cells[1].outputs if output.output_type == "display_data"]
    assert base64.b64decode(shown[0].data["image/png"]).startswith(b"\x89PNG")
    assert notebook.cells[2].outputs[0].data["text/plain"] == "42"
    bad = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import no_such_module")])
    with pytest.raises(CellExecutionError, match="ModuleNotFoundError"):
        NotebookClient(bad, kernel_name="redoma", timeout=int(PATIENCE)).execute()
    nbformat.validate(notebook)
