"""The chat box of notebook 00: type a message, watch the answer come token by token."""

from __future__ import annotations

import html
import os
import threading
import time

import ipywidgets

from course_lib.errors import CourseError
from course_lib.fetch import smollm2_path
from course_lib.llm import LLM
from course_lib.sampling import SamplingParams

TEMPERATURE = 0.2  # what SmolLM2's authors use: a small model strays at higher ones


def chat_model() -> str:
    """COURSE_MODEL, else the chat model smollm2-135m where it is on this machine, else `tiny`."""
    return os.environ.get("COURSE_MODEL") or ("smollm2-135m" if smollm2_path() else "tiny")


class ChatBox(ipywidgets.VBox):
    """A conversation with a model. The model is loaded with the first message, the answer runs in a thread of its own.

    A model without a chat template (such as `tiny`) continues the text that is typed.
    """

    def __init__(self, model: str | LLM | None = None):
        self._model = model or chat_model()
        self.llm: LLM | None = self._model if isinstance(self._model, LLM) else None
        self.messages: list[dict[str, str]] = []
        self._stop = threading.Event()
        wide = ipywidgets.Layout(width="100%")
        hint = "Type a message and press Send"
        self.text = ipywidgets.Textarea(placeholder=hint, rows=2, layout=wide)
        name = {"description_width": "initial"}  # as wide as the text
        self.temperature = ipywidgets.FloatSlider(
            value=TEMPERATURE, min=0, max=2, step=0.1, description="temperature", style=name
        )
        self.length = ipywidgets.IntSlider(value=120, min=10, max=400, step=10, description="max tokens", style=name)
        self.send = ipywidgets.Button(description="Send", button_style="primary")
        self.stop = ipywidgets.Button(description="Stop", disabled=True)
        self.clear = ipywidgets.Button(description="New chat")
        self.send.on_click(lambda _: self.ask(self.text.value))
        self.stop.on_click(lambda _: self._stop.set())
        self.clear.on_click(lambda _: self.reset())
        self.history = ipywidgets.HTML(layout=wide)
        buttons = ipywidgets.HBox([self.send, self.stop, self.clear])
        super().__init__([self.history, self.text, ipywidgets.HBox([self.temperature, self.length]), buttons])
        self._show()

    def ask(self, message: str) -> threading.Thread | None:
        """Send a message; returns the thread that answers, or None where there is nothing to do."""
        if not message.strip() or self.send.disabled:
            return None
        self.messages.append({"role": "user", "content": message.strip()})
        self.text.value = ""
        self._stop.clear()
        self.send.disabled, self.stop.disabled, self.clear.disabled = True, False, True
        thread = threading.Thread(target=self._answer, daemon=True)
        thread.start()
        return thread

    def reset(self) -> None:
        """Forget the conversation."""
        self.messages = []
        self._show()

    def _answer(self) -> None:
        note, answer = "", {"role": "assistant", "content": ""}
        try:
            if self.llm is None:
                self._show(f"loading {self._model} ...")
                self.llm = LLM(self._model)
            params = SamplingParams(temperature=self.temperature.value, top_p=0.9, max_tokens=self.length.value)
            start, first, pieces = time.perf_counter(), None, 0
            if self.llm.tokenizer.chat_template:
                stream = self.llm.stream_chat(self.messages, params)
            else:
                stream = self.llm.stream(self.messages[-1]["content"], params)
            self.messages.append(answer)
            for piece in stream:
                first = first or time.perf_counter()
                pieces += 1
                answer["content"] += piece
                self._show()
                if self._stop.is_set():
                    break
            if first and pieces > 1:
                rate = (pieces - 1) / (time.perf_counter() - first)
                note = f"first text after {first - start:.2f} s, then {rate:.0f} pieces of text per second"
        except CourseError as error:
            note = str(error)
        finally:
            if not answer["content"]:  # nothing came: give the message back, so that the next turn is well formed
                self.messages = [message for message in self.messages if message is not answer]
                self.text.value = self.messages.pop()["content"]
            self.send.disabled, self.stop.disabled, self.clear.disabled = False, True, False
            self._show(note)

    def _show(self, note: str = "") -> None:
        name = self._model if isinstance(self._model, str) else self._model.name
        lines = [f"<b>{html.escape(name)}</b>"]
        for message in self.messages:
            who = "you" if message["role"] == "user" else "model"
            text = html.escape(message["content"]).replace("\n", "<br>")
            lines.append(f'<div style="margin:6px 0"><span style="color:#767676">{who}</span><br>{text}</div>')
        if note:
            lines.append(f'<div style="color:#767676">{html.escape(note)}</div>')
        self.history.value = "".join(lines)
