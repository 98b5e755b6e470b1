"""The decode benchmark on `tiny`: same weights on both sides, complete samples, conditions written."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from course_lib.bench.peers import as_transformers
from course_lib.cli import app
from course_lib.errors import CourseError
from course_lib.model import Decoder
from course_lib.perf.counts import matmul_params
from course_lib.weights import load_model
from tests.conftest import small_config


def test_bench_decode_writes_raw_samples_of_both_engines(tmp_path):
    path = tmp_path / "decode.json"
    options = ["--model", "tiny", "--threads", "1", "--prompt-tokens", "20", "--new-tokens", "5", "--repeats", "2"]
    outcome = CliRunner().invoke(app, ["bench", "decode", "--json", str(path), *options])
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(path.read_text())
    assert result["largest_logit_difference"] < 1e-4
    [run] = result["runs"]
    assert run["threads"] == 1 and run["read_bandwidth"] > 0
    for engine in ("course", "transformers"):
        assert len(run["samples"][engine]["ttft"]) == len(run["samples"][engine]["tpot"]) == 2
        assert min(run["samples"][engine]["tpot"]) > 0
        assert engine[:5] in outcome.output
    # 41: the bytes of a step hold the KV cache beside the weights.
    weights = 4 * matmul_params(load_model("tiny").config)
    config = load_model("tiny").config
    assert result["bytes_per_decode_step"] == weights + (20 + 2) * config.kv_bytes_per_token(4)
    assert {"torch", "transformers", "python"} <= result["versions"].keys() and result["settings"]["seed"] == 0


def test_a_missing_peer_is_named_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # what an import of a missing package meets
    outcome = CliRunner().invoke(app, ["bench", "decode", "--model", "tiny"])
    assert outcome.exit_code == 1
    assert "the comparison needs transformers; `python3 course.py test` installs it" in outcome.output


def test_a_qwen3_has_a_twin_too():
    """With norms of q and k, and not all ones; what has no twin is named."""
    model = Decoder.random(small_config(architecture="qwen3", qk_norm=True, tied_embeddings=True), seed=1)
    for block in model.blocks:
        for norm in (block.attention.q_norm, block.attention.k_norm):
            norm.weight.uniform_(0.5, 2, generator=torch.Generator().manual_seed(2))
    ids = torch.arange(20)
    torch.testing.assert_close(model(ids), as_transformers(model)(ids[None]).logits[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(CourseError, match="Llama and Qwen3 shapes without RoPE scaling, not for qwen2"):
        as_transformers(Decoder.random(small_config(architecture="qwen2")))


def test_bench_batching_serves_the_same_requests_under_each_policy(tmp_path):
    path = tmp_path / "batching.json"
    options = ["--model", "tiny", "--threads", "1", "--requests", "12", "--prompt-mean", "12", "--output-mean", "8"]
    options += ["--max-num-seqs", "4", "--repeats", "2"]
    outcome = CliRunner().invoke(app, ["bench", "batching", "--json", str(path), *options])
    assert outcome.exit_code == 0, outcome.output
    rounds = json.loads(path.read_text())["rounds"]
    assert [each["seed"] for each in rounds] == [0, 1]
    assert rounds[0]["output_tokens"] != rounds[1]["output_tokens"]
    for each in rounds:
        runs = each["runs"]
        assert list(runs) == ["static", "continuous", "chunked prefill"]
        for run in runs.values():
            assert len(run["ttft"]) == len(run["tpot"]) == 12
            assert 0 <= run["waste"] < 1 and 0 < run["scheduling_share"] < run["forward_share"] < 1
        # Slots that free early are given to others, so continuous batching needs fewer steps for the same tokens.
        assert runs["continuous"]["steps"] < runs["static"]["steps"]
        assert runs["continuous"]["mean_running"] > runs["static"]["mean_running"]


def test_bench_steps_times_decode_steps_of_all_sequences_and_nothing_else(tmp_path):
    path = tmp_path / "steps.json"
    options = ["--model", "tiny", "--threads", "1", "--prompt-tokens", "20", "--steps", "6"]
    options += ["--batch", "1", "--batch", "4", "--sequences", "4", "--sequences", "32"]
    outcome = CliRunner().invoke(app, ["bench", "steps", "--json", str(path), *options])
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(path.read_text())
    assert list(result["batches"]) == ["1", "4"] and list(result["bookkeeping"]) == ["4", "32"]
    for run in result["batches"].values():
        # 8 tokens: one by the prefill, seven by decodes, of which the first warms up.
        assert {len(run[part]) for part in ("scheduling_s", "forward_s", "sampling_s")} == {6}
        assert 0 < min(run["products_s"])
    assert {len(samples) for samples in result["bookkeeping"].values()} == {5}
    assert all(column in outcome.output for column in ("products", "tok/s", "schedule", "us/seq", "share"))


def test_bench_kv_scores_each_format_and_each_window(tmp_path):
    """Small sizes; the scores themselves are tested where they come from."""
    path = tmp_path / "kv.json"
    arguments = "kv --windows 1 --window 160 --visible 16 --threads 1"
    done = CliRunner().invoke(app, ["bench", *arguments.split(), "--json", str(path)])
    assert done.exit_code == 0, done.output
    result = json.loads(path.read_text())
    at = {row["format"]: row for row in result["formats"]}
    assert at["float"]["bits_per_element"] == 16 and at["int8"]["bits_per_element"] == 8 + 32 / 32
    assert at["float"]["bytes"] == at["float"]["float32_bytes"] == 160 * 2 * 5 * 2 * 32 * 4  # tiny: L 5, K 2, d 32
    assert abs(at["int8"]["perplexity"] / at["float"]["perplexity"] - 1) < 0.02
    assert len({row["perplexity"] for row in result["formats"]}) == len(at), "each format has errors of its own"
    assert [(row["window"], row["sinks"]) for row in result["visible"]] == [(16, 0), (16, 1), (16, 4)]
    assert result["visible"][0]["bytes"] < result["visible"][2]["bytes"] < at["float"]["bytes"]
    assert "int4, before RoPE" in done.output


def test_bench_kv_decode_times_every_ratio_on_its_own_cache(tmp_path):
    path = tmp_path / "kv.json"
    arguments = "kv-decode --context 64 --batch 3 --repeats 2 --threads 1"
    done = CliRunner().invoke(app, ["bench", *arguments.split(), "--json", str(path)])
    assert done.exit_code == 0, done.output
    steps = json.loads(path.read_text())["steps"]
    assert [(row["ratio"], row["format"]) for row in steps] == [
        (1, "auto"), (1, "int8"), (2, "auto"), (4, "auto"), (8, "auto"),
    ]  # fmt: skip
    floats = 3 * 64 * 2 * 4 * 64  # B n 2 L d, of one KV head
    assert [row["cache_bytes"] for row in steps] == [floats * 32, floats * 8 * (1 + 4 / 64)] + [
        floats * 4 * heads for heads in (4, 2, 1)
    ]
    assert all(len(row["samples"]) == 2 and min(row["samples"]) > 0 for row in steps)
