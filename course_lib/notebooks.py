"""Execute notebooks in place, as they are committed: `python -m course_lib.notebooks notebooks/*.ipynb`.

The outputs that stay are those a reader without a kernel can see: pieces of one stream are joined, and a widget leaves
its picture, not a view whose model died with the kernel.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

CELL_TIMEOUT = 120  # seconds
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
FRAME_OF_A_FILE = re.compile(r"(\x1b\[[\d;]*m)*File ")  # in IPython's tracebacks; it names a folder of this machine


def execute(path: Path) -> None:
    """Run all cells of a notebook with the python3 kernel and write it back. Raises where a cell fails unannounced."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    tidy(notebook)
    nbformat.write(notebook, path)


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Remove from executed cells what only a live kernel can show, timestamps and the frames of files in tracebacks;
    join neighbouring stream outputs."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        kept: list[nbformat.NotebookNode] = []
        for output in cell.outputs:
            output.get("data", {}).pop(WIDGET_VIEW, None)
            if output.output_type == "error":
                output.traceback = [part for part in output.traceback if not FRAME_OF_A_FILE.match(part)]
            if kept and output.output_type == "stream" == kept[-1].output_type and output.name == kept[-1].name:
                kept[-1].text += output.text
            else:
                kept.append(output)
        cell.outputs = kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    for path in tqdm(parser.parse_args().notebooks, unit="notebook"):
        execute(path)


if __name__ == "__main__":
    main()
