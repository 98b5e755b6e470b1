"""Notebook 00 in JupyterLab in a real browser: it opens, runs, and a slider changes a picture."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

from course_lib.doctor import BROWSERS

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "00_start_here.ipynb"
TOKEN = "browser-test"
SECOND = 1000  # playwright counts in milliseconds
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Playwright polls these; an async predicate would count as true at once.
KERNEL_IS_IDLE = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.context?.isReady && panel.sessionContext?.session?.kernel?.status === 'idle';
}"""
# Code cells that are not meant to fail: a cell tagged raises-exception shows a mistake and its message.
CELLS = """const cells = window.jupyterapp.shell.currentWidget.context.model.toJSON().cells.filter(
    cell => cell.cell_type === 'code' && !cell.metadata.tags?.includes('raises-exception'));
const errors = cells.flatMap(cell => cell.outputs.filter(output => output.output_type === 'error')).map(
    output => `${output.ename}: ${output.evalue}`);"""
HAS_RUN = f"() => {{ {CELLS} return errors.length > 0 || cells.every(cell => cell.execution_count); }}"
ERRORS = f"() => {{ {CELLS} return errors; }}"


@pytest.fixture(scope="module")
def browser():
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=CHROMIUM_OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab of its own, untouched by this machine's settings, on a copy of the notebook."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    root = tmp_path / "root"
    root.mkdir()
    nbformat.write(notebook, root / NOTEBOOK.name)

    folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    environment = os.environ | {f"JUPYTER_{name}": str(tmp_path / name) for name in folders}
    environment |= {f"JUPYTERLAB_{name}": str(tmp_path / name) for name in ("SETTINGS_DIR", "WORKSPACES_DIR")}
    environment |= {"IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_PREFER_ENV_PATH": "1"}
    environment |= {"COURSE_MODEL": "tiny", "COURSE_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    write_settings(
        tmp_path / "SETTINGS_DIR",
        {
            "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
            # Cells out of sight stay in the page, where the test looks for them.
            "notebook-extension/tracker": {"windowingMode": "none"},
        },
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={root}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    with (tmp_path / "lab.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for_server(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", server, tmp_path / "lab.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def write_settings(folder: Path, settings: dict[str, dict]) -> None:
    for name, values in settings.items():
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))


def wait_for_server(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(480):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(address, timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    pytest.fail(f"JupyterLab did not answer within two minutes:\n{log.read_text()}")


def test_notebook_runs_and_its_slider_redraws(lab, browser):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(120 * SECOND)
    page_errors, offsite = [], []
    own = (lab, lab.replace("http", "ws"), "data:", "blob:")
    page.on("pageerror", lambda error: page_errors.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(own) else offsite.append(request.url))

    page.goto(f"{lab}/lab/tree/{NOTEBOOK.name}?token={TOKEN}&reset")
    page.wait_for_function(KERNEL_IS_IDLE)
    page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(HAS_RUN, timeout=240 * SECOND)
    assert page.evaluate(ERRORS) == []

    explorer = page.locator(".jp-OutputArea-output", has=page.locator(".widget-slider"))
    explorer = explorer.filter(has=page.locator("img")).first
    picture = explorer.locator("img")
    before, address = picture.screenshot(), picture.get_attribute("src")
    explorer.locator(".noUi-handle").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("([image, old]) => image.src !== old", arg=[picture.element_handle(), address])
    page.wait_for_function(KERNEL_IS_IDLE)
    assert picture.screenshot() != before
    assert page.evaluate(ERRORS) == []
    assert page_errors == []
    assert offsite == []
