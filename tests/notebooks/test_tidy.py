"""What `course_lib.notebooks` leaves of an executed notebook."""

from __future__ import annotations

from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_lib.notebooks import WIDGET_VIEW, tidy


def outputs_after_tidy(*outputs):
    notebook = new_notebook(cells=[new_code_cell("", outputs=list(outputs))])
    tidy(notebook)
    return notebook.cells[0].outputs


def test_an_error_keeps_its_cell_and_its_message_and_loses_the_frames_of_files():
    frames = ["Traceback", "\x1b[36mCell\x1b[39m In[1], line 2", "\x1b[36mFile \x1b[39m\x1b[32m/a/b.py:3\x1b[39m"]
    plain = ["File ~/c.py:4, in f()", "RequestError: File it elsewhere"]
    [error] = outputs_after_tidy(new_output("error", ename="E", evalue="v", traceback=frames + plain))
    assert error.traceback == [*frames[:2], plain[1]]


def test_neighbouring_streams_are_joined_and_widgets_keep_their_picture():
    text = [new_output("stream", name="stdout", text=part) for part in ("a", "b")]
    shown = new_output("display_data", data={WIDGET_VIEW: {}, "image/png": "x"})
    joined, picture = outputs_after_tidy(*text, shown)
    assert joined.text == "ab" and picture.data == {"image/png": "x"}
