"""The chat box without a browser: it answers, stops, remembers, and says what is wrong."""

from __future__ import annotations

from course_lib.chat import ChatBox, chat_model


def ask(box: ChatBox, message: str) -> None:
    box.ask(message).join(timeout=60)


def test_a_message_gets_an_answer_and_the_buttons_come_back(tiny):
    box = ChatBox(tiny)
    box.length.value = 10
    ask(box, "In the beginning <b>")
    assert [message["role"] for message in box.messages] == ["user", "assistant"]
    assert box.messages[1]["content"]
    assert "In the beginning &lt;b&gt;" in box.history.value
    assert "pieces of text per second" in box.history.value
    assert (box.send.disabled, box.stop.disabled, box.text.value) == (False, True, "")
    box.reset()
    assert box.messages == []


def test_stop_ends_the_answer(tiny):
    box = ChatBox(tiny)
    box.length.value = 400
    thread = box.ask("O")
    box.stop.click()
    thread.join(timeout=60)
    assert not thread.is_alive() and not box.send.disabled
    assert len(tiny.tokenizer.encode(box.messages[-1]["content"])) < 200


def test_empty_messages_are_not_sent(tiny):
    box = ChatBox(tiny)
    assert box.ask("  ") is None and box.messages == []


def test_an_error_is_shown_as_one_sentence_and_the_chat_goes_on(tiny):
    box = ChatBox(tiny)
    ask(box, "king " * 3000)
    assert "shorten it to at most" in box.history.value
    assert box.messages == [] and box.text.value.startswith("king")  # the message is given back to be shortened
    box.length.value = 10
    ask(box, "O")
    assert len(box.messages) == 2


def test_a_model_that_is_not_there_is_named():
    box = ChatBox("no-such-model")
    ask(box, "hello")
    assert "there is no model" in box.history.value and not box.send.disabled


def test_the_model_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("COURSE_MODEL", "tiny-draft")
    assert chat_model() == "tiny-draft"
    monkeypatch.delenv("COURSE_MODEL")
    assert chat_model() in ("smollm2-135m", "tiny")
