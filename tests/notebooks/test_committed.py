"""What is committed is what a reader sees: every cell executed, every picture small, every link alive."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OTHERS = sorted((ROOT / "exercises").glob("*.ipynb")) + sorted((ROOT / "solutions").glob("*.ipynb"))
LARGEST_IMAGE = 150_000  # base64 characters
PRIVATE = re.compile(r"/(home|root|tmp|Users|work)/|[A-Z]:\\\\Users")

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def test_every_code_cell_was_executed_once_from_top_to_bottom(path):
    """nbval passes a cell without outputs silently, so the committed counts are checked here."""
    counts = [cell.execution_count for cell in code_cells(path) if cell.source.strip()]
    assert counts == list(range(1, len(counts) + 1))


def test_errors_are_announced_and_nothing_goes_to_stderr(path):
    for cell in code_cells(path):
        kinds = [output.output_type for output in cell.outputs]
        assert ("error" in kinds) == ("raises-exception" in cell.metadata.get("tags", [])), cell.source
        assert not [o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stderr"]


def test_outputs_are_small_and_need_no_kernel(path):
    notebook = nbformat.read(path, 4)
    assert "widgets" not in notebook.metadata
    for cell in code_cells(path):
        for output in cell.outputs:
            for kind, data in output.get("data", {}).items():
                assert not kind.startswith("application/vnd.jupyter.widget"), "a widget view outlives no kernel"
                assert not kind.startswith("image/") or len(data) < LARGEST_IMAGE, cell.source


def test_names_no_path_of_the_machine_it_ran_on(path):
    found = PRIVATE.search(path.read_text(encoding="utf-8"))
    assert found is None, path.read_text(encoding="utf-8")[found.start() - 40 : found.end() + 40]


def test_a_picture_is_described_in_words(path):
    """The next text after a picture begins with its description, in italics."""
    waiting = None
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code" and any("image/png" in output.get("data", {}) for output in cell.outputs):
            waiting = cell.source
        elif waiting is not None and cell.cell_type == "markdown":
            assert re.match(r"\*[^*]+\*", cell.source), waiting
            waiting = None
    assert waiting is None, waiting


def test_local_links_lead_somewhere(path):
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#\s]+)", cell.source):
                assert target.startswith("http") or (path.parent / target).exists(), target


def test_no_cell_is_longer_than_a_screen(path):
    assert max(len(cell.source.splitlines()) for cell in code_cells(path)) <= 30
