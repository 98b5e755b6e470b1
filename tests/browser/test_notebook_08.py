"""Notebook 08 in JupyterLab in a real browser: the block map can be stepped through, with either index."""

from __future__ import annotations

import base64

from course_lib.widgets import block_map_explorer

# The bytes of the picture that the page shows now, as text.
PICTURE = """async image => {
    const bytes = new Uint8Array(await (await fetch(image.src)).arrayBuffer());
    return btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(''));
}"""


def drawn(step: int, index: str) -> str:
    """What the widget draws for these controls without a browser, in the same form."""
    return base64.b64encode(block_map_explorer(step, index).picture.value).decode()


def test_block_map_follows_its_controls(open_notebook):
    start, moved, hashes = drawn(15, "radix tree"), drawn(13, "radix tree"), drawn(13, "chained hashes")
    assert len({start, moved, hashes}) == 3

    notebook = open_notebook("08_paged_attention.ipynb", last="paged-49")  # the cells behind the widget only measure
    notebook.run_all()
    explorer, page = notebook.explorer(), notebook.page
    picture = explorer.locator("img")

    def wait_for(wanted: str) -> None:
        for _ in range(600):
            if picture.evaluate(PICTURE) == wanted:
                return
            page.wait_for_timeout(100)
        raise AssertionError("the picture of these controls was not shown within a minute")

    wait_for(start)
    explorer.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    wait_for(moved)
    explorer.locator("select").select_option("chained hashes")
    wait_for(hashes)
    notebook.check_clean()
