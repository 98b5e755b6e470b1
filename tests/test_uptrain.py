"""The measurement of fewer KV heads: what each run starts from, how long it is, and that it can be continued."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from course_lib import facts
from course_lib.plots.kv_heads import perplexities
from course_lib.training import uptrain
from course_lib.training.corpus import VOCAB
from course_lib.training.recipes import Recipe

SHAPE = dict(
    hidden_size=32,
    num_hidden_layers=1,
    intermediate_size=16,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=4,
)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with token files, and a random model of 8 heads and 40 steps in the place of the shipped twin."""
    rng = np.random.default_rng(5)
    for part, size in (("train", 4000), ("held", 1100)):
        np.save(tmp_path / f"{part}.npy", rng.integers(0, VOCAB, size).astype(np.uint16))
    recipe = Recipe(tmp_path / "twin", SHAPE, steps=40, lr=1e-3)
    torch.manual_seed(0)
    model = recipe.new_model()
    model.model.layers[0].self_attn.v_proj.weight.data.mul_(20)  # so that the attention matters
    model.save_pretrained(recipe.folder)
    monkeypatch.setattr(uptrain, "TWIN", recipe)
    return tmp_path


def test_without_training_the_score_is_that_of_the_merged_heads(work):
    kept, merged, first = (
        uptrain.uptrain(kv_heads, how, 0.0, seed=1, peak_lr=1e-3, work=work)
        for kv_heads, how in ((8, "mean"), (2, "mean"), (2, "first"))
    )
    model = uptrain.TWIN.new_model()
    twin = type(model).from_pretrained(uptrain.TWIN.folder, dtype=torch.float32)
    x = torch.from_numpy(np.load(work / "held.npy")[:1024].astype(np.int64)).view(2, 512)
    assert kept["held_out_loss"] == pytest.approx(twin(x, labels=x).loss.item(), abs=1e-5)
    assert kept["perplexity"] == pytest.approx(np.exp(kept["held_out_loss"]))
    assert len({run["held_out_loss"] for run in (kept, merged, first)}) == 3
    assert kept["steps"] == kept["tokens"] == 0


def test_a_share_is_of_the_twins_steps_and_training_lowers_the_loss_on_its_text(work):
    np.save(work / "held.npy", np.load(work / "train.npy"))
    before, after = (uptrain.uptrain(1, "mean", share, seed=1, peak_lr=1e-3, work=work) for share in (0.0, 0.1))
    assert (after["steps"], after["tokens"]) == (4, 4 * 2048)
    assert after["held_out_loss"] < before["held_out_loss"]


def test_from_scratch_has_the_steps_of_both_trainings(work, monkeypatch):
    monkeypatch.setattr(uptrain, "TWIN", replace(uptrain.TWIN, steps=20))
    monkeypatch.setattr(uptrain, "SHARES", (0.0, 0.1))
    run = uptrain.from_scratch(2, "from scratch", seed=3, work=work)
    assert (run["steps"], run["tokens"]) == (22, 22 * 2048)
    state = torch.load(work / "scratch-2-3.pt")["model"]
    assert state["model.layers.0.self_attn.k_proj.weight"].shape == (2 * 4, 32)


def test_the_plan_has_each_run_once_and_a_control_for_each_share():
    runs = [tuple(run.items()) for run in uptrain.plan(1)]
    assert len(runs) == len(set(runs))
    for share in uptrain.SHARES:
        for kv_heads in (8, 4, 2, 1):
            assert {"kv_heads": kv_heads, "how": "mean", "share": share, "seed": 1} in uptrain.plan(1)


def test_the_sweep_sees_the_training_loss_alone(work):
    run = uptrain.try_peak(2, 1e-3, seed=1, work=work)
    assert run.keys() == {"kv_heads", "peak_lr", "seed", "train_loss_of_last_fifth"}
    (work / "held.npy").unlink()
    assert uptrain.try_peak(2, 1e-3, seed=1, work=work) == run


def test_the_command_chooses_peaks_by_the_sweep_and_repeats_no_run(work, monkeypatch):
    path = work / "result.json"
    losses = {(8, 1e-3): 3.0, (8, 2e-3): 3.1, (1, 1e-3): 4.0, (1, 2e-3): 3.9}
    tried = []

    def try_peak(kv_heads, peak_lr, seed, work):
        tried.append((kv_heads, peak_lr))
        loss = losses[kv_heads, peak_lr]
        return {"kv_heads": kv_heads, "peak_lr": peak_lr, "seed": seed, "train_loss_of_last_fifth": loss}

    wanted = [{"kv_heads": k, "how": "mean", "share": 0.0, "seed": 1} for k in (8, 1)]
    monkeypatch.setattr(sys, "argv", ["uptrain", "--work", str(work), "--json", str(path), "--no-scratch"])
    monkeypatch.setattr(uptrain, "HEADS", (8, 1))
    monkeypatch.setattr(uptrain, "PEAKS", (1e-3, 2e-3))
    monkeypatch.setattr(uptrain, "try_peak", try_peak)
    monkeypatch.setattr(uptrain, "plan", lambda seed: wanted[:1])
    uptrain.main()
    first = json.loads(path.read_text())
    monkeypatch.setattr(uptrain, "plan", lambda seed: wanted)
    uptrain.main()
    second = json.loads(path.read_text())
    assert tried == list(losses)
    assert [(run["kv_heads"], run["peak_lr"]) for run in second["runs"]] == [(8, 1e-3), (1, 2e-3)]
    assert second["runs"][0] == first["runs"][0]
    assert second["settings"]["scored_tokens"] == 2 * 511
    assert {"python", "torch", "transformers"} <= second["versions"].keys()


def test_the_shipped_results_are_whole_and_follow_from_their_own_sweep():
    found = facts.uptraining()
    runs, sweep = found["runs"], found["sweep"]
    assert len(sweep) == len(uptrain.HEADS) * len(uptrain.PEAKS)
    for wanted in uptrain.plan(1):
        [run] = [run for run in runs if wanted.items() <= run.items()]
        assert run["peak_lr"] == uptrain.best_peak(sweep, run["kv_heads"])
        assert run["steps"] == round(run["share"] * found["settings"]["twin_steps"])
    for run in runs:
        assert run["tokens"] == run["steps"] * found["settings"]["step_tokens"]
        assert run["perplexity"] == pytest.approx(np.exp(run["held_out_loss"]))


def test_the_shipped_results_say_what_the_course_says():
    """Fewer heads cost more at every share, more training repairs more, and nothing is better than all heads."""
    runs = facts.uptraining()["runs"]
    curves = [list(perplexities(runs, "mean", share).values()) for share in uptrain.SHARES]
    for curve in curves:
        assert curve == sorted(curve)
    for by_share in list(zip(*curves, strict=True))[1:]:  # those with fewer heads
        assert list(by_share) == sorted(by_share, reverse=True)
