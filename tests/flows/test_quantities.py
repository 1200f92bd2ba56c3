from flows.quantities import amount, duration, short_count, size


def test_durations_and_sizes_read_well():
    assert [duration(s) for s in (3.21, 245, 7805)] == ["3.2 s", "4 min 05 s", "2 h 10 min"]
    assert [duration(h * 3600) for h in (47.5, 48, 1000)] == [
        "47 h 30 min",
        "2 d 00 h",
        "41 d 16 h",
    ]
    assert [size(n) for n in (999, 3_400_000, 2e15)] == ["999 B", "3.4 MB", "2000.0 TB"]


def test_counts_and_amounts_have_few_digits():
    counts = (950, 1500, 99_960, 999_600, 1.5e9, 4.2e12)
    assert [short_count(n) for n in counts] == ["950", "1.5 k", "100 k", "1.0 M", "1.5 G", "4.2 T"]
    assert [amount(v) for v in (0.021, 7.46, 12_345.6)] == ["0.021", "7.5", "12,346"]
