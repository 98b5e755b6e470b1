"""Notebook 00 in JupyterLab in a real browser: it opens, runs, and a slider changes a picture."""

from __future__ import annotations


def test_notebook_runs_and_its_slider_redraws(open_notebook):
    notebook = open_notebook("00_start_here.ipynb")
    notebook.run_all()

    explorer, page = notebook.explorer(), notebook.page
    picture = explorer.locator("img")
    before, address = picture.screenshot(), picture.get_attribute("src")
    explorer.locator(".noUi-handle").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("([image, old]) => image.src !== old", arg=[picture.element_handle(), address])
    notebook.check_clean()
    assert picture.screenshot() != before
