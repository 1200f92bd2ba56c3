"""The plots: equal data, equal bytes."""

from eval.plots import Bar, Series, curve_plot, funnel_plot, scores_plot


def test_the_bytes_of_a_plot_depend_on_its_data_only():
    bars = [Bar("dedup", 5, 1)]
    series = [Series("a", (0.0, 1.0), (1.0, 2.0), (0.5, 1.5), (1.5, 2.5))]
    for draw in (lambda: funnel_plot(bars), lambda: scores_plot(["x", "y"], series),
                 lambda: curve_plot("t", series)):  # fmt: skip
        assert draw() == draw()
        assert "<dc:date>" not in draw()
    assert curve_plot("t", series) != curve_plot("u", series)
