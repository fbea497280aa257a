"""A picture of the run: bytes on the disk, and records in and deleted, over time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

DEEP, TIDE, SAND, INK = "#0b3954", "#1f9e9e", "#d08c3f", "#33424d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of the broker. Offsets are sums over the partitions."""

    seconds: float
    trimmed_bytes: int
    left_alone_bytes: int
    result_bytes: int
    written: int
    low_watermark: int
    results: int

    def line(self) -> str:
        sizes = (self.trimmed_bytes, self.left_alone_bytes, self.result_bytes)
        mega = "  ".join(f"{size / 1e6:>11.1f}" for size in sizes)
        return f"{self.seconds:>9.0f}  {self.written:>11,}  {self.low_watermark:>9,}  {self.results:>10,}  {mega}"


def freed_after_s(samples: list[Sample], slack_bytes: int) -> float:
    """How far the disk is behind the low watermark: the longest time until it has only what was retained, with slack.

    A record's size is that of all that were written until then. The moments are those of the samples.
    """
    most_s = 0.0
    for number, sample in enumerate(samples):
        if sample.written:
            record_bytes = sample.left_alone_bytes / sample.written
            for before in reversed(samples[: number + 1]):
                most_s = max(most_s, sample.seconds - before.seconds)
                if sample.trimmed_bytes <= (sample.written - before.low_watermark) * record_bytes + slack_bytes:
                    break
    return most_s


def draw(samples: list[Sample], path: Path) -> None:
    """Writes the picture, a PNG."""
    seconds = [sample.seconds for sample in samples]
    plt.rcParams.update(
        {"font.size": 10, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    )
    figure, (disk, records) = plt.subplots(2, 1, figsize=(8.6, 6.4), sharex=True, gridspec_kw={"height_ratios": [3, 2]})

    disk.fill_between(
        seconds, [sample.left_alone_bytes / 1e6 for sample in samples], color=SAND, alpha=0.25, linewidth=0
    )
    disk.plot(
        seconds,
        [sample.left_alone_bytes / 1e6 for sample in samples],
        color=SAND,
        linewidth=2,
        label="flights, not trimmed",
    )
    disk.fill_between(seconds, [sample.trimmed_bytes / 1e6 for sample in samples], color=TIDE, alpha=0.35, linewidth=0)
    disk.plot(
        seconds,
        [sample.trimmed_bytes / 1e6 for sample in samples],
        color=TIDE,
        linewidth=2,
        label="flights, trim=eager",
    )
    disk.plot(
        seconds,
        [sample.result_bytes / 1e6 for sample in samples],
        color=DEEP,
        linewidth=1.4,
        linestyle="--",
        label="delays",
    )
    disk.set_ylabel("MB on disk")
    disk.set_title("A year of flights through a topic that Spark trims", loc="left", color=INK, fontweight="bold")

    written, low = [sample.written for sample in samples], [sample.low_watermark for sample in samples]
    records.fill_between(seconds, low, written, color=TIDE, alpha=0.35, linewidth=0, label="retained")
    records.plot(seconds, written, color=INK, linewidth=1.6, label="log end offset")
    records.plot(seconds, low, color=TIDE, linewidth=2, label="low watermark, trim=eager")
    records.plot(seconds, [0] * len(samples), color=SAND, linewidth=2, label="low watermark, not trimmed")
    records.set_ylabel("records")
    records.set_xlabel("seconds")
    records.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value / 1000:,.0f}k" if value else "0"))

    for axes in (disk, records):
        axes.set_xlim(0, seconds[-1])
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, axis="y", color=INK, alpha=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
