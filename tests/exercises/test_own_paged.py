"""The engine that exercise 08 ends with: right functions give the logits of a contiguous cache, wrong ones do not."""

from __future__ import annotations

import pytest

from course_lib.checks import find_problem, load_exercise
from course_lib.checks.own_paged import OwnPagedEngine

TEXT = list(range(40, 70))
OTHER = list(range(200, 230))


@pytest.fixture
def model(tiny):
    return tiny.model


class Served:
    """An engine, and the largest logit error of each step against one pass without a paged cache."""

    def __init__(self, model, blocks, **functions):
        right = {problem.name: problem.reference for problem in load_exercise("08")}
        self.model, self.engine = model, OwnPagedEngine(model, blocks, 4, *(right | functions).values())
        self.texts, self.errors = {}, []

    def start(self, name, text):
        found = self.engine.start(name, text)
        self.texts[name] = text[:found]
        self.feed(name, text[found:])
        return found

    def feed(self, name, new):
        self.texts[name] = self.texts[name] + new
        whole = self.model.forward(self.texts[name])[-len(new) :]
        self.errors.append(float((self.engine.step(name, new) - whole).abs().max()))

    def fork(self, parent, child):
        self.engine.fork(parent, child)
        self.texts[child] = self.texts[parent]


def course_of_events(served):
    served.start("A", TEXT[:22])
    found = served.start("B", TEXT[:14] + OTHER[:4])
    served.fork("B", "C")
    for name, new in (("C", TEXT[:2]), ("B", OTHER[:2]), ("C", TEXT[2:5])):
        served.feed(name, new)
    return found


def test_right_functions_serve_three_sequences(model):
    served = Served(model, blocks=16)
    assert course_of_events(served) == 12
    assert max(served.errors) < 1e-3
    engine = served.engine
    for name in "ABC":
        engine.finish(name)
    assert engine.refs == [0] * 16 and sorted(engine.free + engine.cached) == list(range(16))


@pytest.mark.parametrize(
    "function,key",
    [
        ("slots", "entry-for-block"),
        ("paged_attention", "last-block-not-cut"),
        ("paged_attention", "padding-leaks"),
        ("allocate", "hits-behind"),
        ("extend", "written-to-shared"),
        ("extend", "copy-reversed"),
    ],
)
def test_a_wrong_function_shows_in_the_logits(model, function, key):
    [wrong] = [mistake.wrong for mistake in find_problem(f"08.{function}").mistakes if mistake.key == key]
    served = Served(model, blocks=16, **{function: wrong})
    course_of_events(served)
    assert max(served.errors) > 0.1


def test_an_evicted_block_is_not_found_again(model):
    served = Served(model, blocks=8)
    served.start("A", TEXT[:24])
    served.engine.finish("A")
    assert len(served.engine.index) == len(served.engine.cached) == 6
    served.start("B", OTHER[:16])  # two free blocks, and the last two of A
    assert served.start("A again", TEXT[:12]) == 8  # and one more block, the next one of A
    assert len(served.engine.index) == 7  # three blocks of A are left, and B has four
    assert max(served.errors) < 1e-3
