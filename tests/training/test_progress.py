from __future__ import annotations

import io

from rich.console import Console

from attngraft.training.progress import LiveBars, format_metrics


def follow(bars: LiveBars) -> None:
    with bars:
        bars.on_start(10, done_steps=4, epochs=2, steps_per_epoch=5)
        for step in range(5, 11):
            bars.on_step(step=step, epoch=1, loss=1.0, lr=0.1)
        bars.on_epoch({"epoch": 1, "train/loss": 1.25, "val/top1": 50.0, "lr": 0.1, "seconds": 2.0})
        bars.on_end(finished=True)


def test_bars_on_a_terminal() -> None:
    text = io.StringIO()
    follow(LiveBars(Console(file=text, force_terminal=True, width=120)))
    assert "epoch   1/2  train/loss 1.25  val/top1 50  2.0 s" in text.getvalue()
    assert "finished" in text.getvalue()
    assert "10/10" in text.getvalue()


def test_no_control_codes_elsewhere() -> None:
    text = io.StringIO()
    follow(LiveBars(Console(file=text, force_terminal=False, width=120)))
    assert "val/top1 50" in text.getvalue()
    assert "\x1b" not in text.getvalue()


def test_metrics_in_words() -> None:
    row = {"epoch": 1, "lr": 0.1, "seconds": 3.0, "train/loss": 0.123456, "val/top1": 99.0}
    assert format_metrics(row) == "train/loss 0.1235  val/top1 99"
