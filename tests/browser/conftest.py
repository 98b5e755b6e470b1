"""A JupyterLab of its own, and a notebook opened in it in a real browser."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course_lib.doctor import BROWSERS

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
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


class OpenNotebook:
    """A notebook in the browser. It collects errors of the page, and requests to other hosts."""

    def __init__(self, page: Any, lab: str, name: str):
        self.page = page
        self._page_errors: list[str] = []
        self._offsite: list[str] = []
        own = (lab, lab.replace("http", "ws"), "data:", "blob:")
        page.set_default_timeout(120 * SECOND)
        page.on("pageerror", lambda error: self._page_errors.append(str(error)))
        page.on("request", lambda request: request.url.startswith(own) or self._offsite.append(request.url))
        page.goto(f"{lab}/lab/tree/{name}?token={TOKEN}&reset")
        page.wait_for_function(KERNEL_IS_IDLE)

    def run_all(self) -> None:
        """Run every cell; fails where one does."""
        self.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        self.page.wait_for_function(HAS_RUN, timeout=240 * SECOND)
        assert self.page.evaluate(ERRORS) == []

    def explorer(self) -> Any:
        """The first output that has a slider above a picture."""
        with_slider = self.page.locator(".jp-OutputArea-output", has=self.page.locator(".widget-slider"))
        return with_slider.filter(has=self.page.locator("img")).first

    def check_clean(self) -> None:
        """No cell and no script of the page has failed, and nothing was asked of another host."""
        self.page.wait_for_function(KERNEL_IS_IDLE)
        assert self.page.evaluate(ERRORS) == []
        assert self._page_errors == []
        assert self._offsite == []


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=CHROMIUM_OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a JupyterLab of its own, untouched by this machine's settings, and its folder of notebooks."""
    tmp_path = tmp_path_factory.mktemp("lab")
    root = tmp_path / "root"
    root.mkdir()
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
        yield f"http://127.0.0.1:{port}", root
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


@pytest.fixture
def open_notebook(lab: tuple[str, Path], browser: Any) -> Iterator[Callable[..., OpenNotebook]]:
    """Open a notebook of the course without outputs; `last` is the id of the last cell to keep, default all."""
    address, root = lab
    pages = []

    def open_one(name: str, last: str | None = None) -> OpenNotebook:
        notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
        if last is not None:
            notebook.cells = notebook.cells[: [cell.id for cell in notebook.cells].index(last) + 1]
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, root / name)
        pages.append(browser.new_page(viewport={"width": 1200, "height": 900}))
        return OpenNotebook(pages[-1], address, name)

    yield open_one
    for page in pages:
        page.close()


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
