"""Durations, sizes, counts and moments as people read them."""

from datetime import datetime


def when(moment: float) -> str:
    """A Unix time on this machine's clock: `2026-08-01 12:30`."""
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")


def duration(seconds: float) -> str:
    """`3.2 s`, `4 min 05 s`, `2 h 10 min`, and from two days on `3 d 04 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24:,} d {hours % 24:02d} h"


def size(count: float) -> str:
    """Bytes with one digit after the point: `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def short_count(count: float) -> str:
    """`950`, `1.5 k`, `3.4 M`, `15.0 G`: tokens."""
    for unit in ("", " k", " M", " G"):
        if count < 999.5:
            return f"{count:.0f}{unit}" if not unit or count >= 99.95 else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} T"


def amount(value: float) -> str:
    """GPU-hours or money: `0.02`, `7.5`, `12,345`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"
