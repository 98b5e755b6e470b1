"""The engine's metrics in Prometheus' text format, with vLLM's choice of quantities."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from course_lib.engine import Engine, Metrics, Request, StepOutput

_FIRST = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_EACH = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)


class Monitor(Metrics):
    """Takes the place of an engine's `Metrics`, and counts what they record. The engine's thread writes, any reads."""

    def __init__(self, history: int = 1000):
        super().__init__(history)
        self.registry = registry = CollectorRegistry()
        self._running = Gauge("course_requests_running", "Completions that hold blocks", registry=registry)
        self._waiting = Gauge("course_requests_waiting", "Requests that hold no blocks", registry=registry)
        self._blocks = Gauge("course_kv_blocks", "KV blocks by state", ["state"], registry=registry)
        self._cache = Info("course_kv_cache", "How keys and values are stored", registry=registry)
        self._ended = Counter("course_requests", "Completions that ended, by reason", ["reason"], registry=registry)
        self._prompt = Counter("course_prompt_tokens", "Prompt tokens of accepted requests", registry=registry)
        self._hits = Counter("course_prefix_hit_tokens", "Prompt tokens found in the prefix cache", registry=registry)
        self._generated = Counter("course_generation_tokens", "Tokens generated", registry=registry)
        self._preempted = Counter("course_preemptions", "Preemptions", registry=registry)
        self._ttft = Histogram(
            "course_time_to_first_token_seconds", "From arrival to the first token", buckets=_FIRST, registry=registry
        )
        self._tpot = Histogram(
            "course_time_per_output_token_seconds", "Mean of a completion", buckets=_EACH, registry=registry
        )
        self._queue = Histogram(
            "course_queue_time_seconds", "From arrival to the first step", buckets=_FIRST, registry=registry
        )

    def accepted(self, prompt_tokens: int) -> None:
        """Count a prompt that the engine took."""
        self._prompt.inc(prompt_tokens)

    def ended(self, request: Request) -> None:
        super().ended(request)
        record = self.requests[-1]
        self._ended.labels(record.finish_reason).inc()
        if record.index == 0:  # siblings share one prompt
            self._hits.inc(record.cached_tokens)
        if record.queue_time is not None:
            self._queue.observe(record.queue_time)
        if record.times.token_times:
            self._ttft.observe(record.times.ttft)
            if record.times.tpot is not None:
                self._tpot.observe(record.times.tpot)

    def stepped(self, outputs: list[StepOutput]) -> None:
        """Count the step that was recorded last."""
        self._generated.inc(len(outputs))
        self._preempted.inc(self.steps[-1].preemptions)

    def observe(self, engine: Engine) -> None:
        """Set the gauges to what the engine holds now, and how."""
        self._running.set(len(engine.scheduler.running))
        self._waiting.set(len(engine.scheduler.waiting))
        self._cache.info({"dtype": engine.cache.format.label})
        blocks = engine.manager.stats()
        for state, number in (("used", blocks.in_use), ("cached", blocks.cached), ("free", blocks.free)):
            self._blocks.labels(state).set(number)

    def text(self) -> bytes:
        """What /metrics answers."""
        return generate_latest(self.registry)
