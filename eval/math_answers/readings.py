"""How both sides are read before any rule compares them: a step for every way to write a value."""

from .notation.functions import cut_out
from .notation.numerals import in_digits
from .notation.plain import in_latex
from .notation.spelling import spell
from .rules import Rule
from .verify import spell_both, stated

READINGS = (
    # The gold alone: a worked solution is the answer it states.
    Rule("Worked solutions as gold", stated,
         (("He has 9 * 2 = 18.\n#### 18", "18"), (r"So it is \boxed{7}.", "7")),
         (("He has 9 * 2 = 18.\n#### 18", "9"),)),
    # Then each side by itself. Names of functions are LaTeX before LaTeX is spelled alike.
    Rule("Program syntax and keyboards", in_latex,
         ((r"\frac{3\sqrt2}{2}", "3*sqrt(2)/2"), ("1024", "2**10"), ("pi/4", r"\frac{\pi}{4}"),
          ("120", "comb(10,3)"), (r"\sqrt{x+1}", "√(x+1)"),
          (r"\frac{2}{e}+\ln 3", "2*exp(-1)+log(3)")),
         ((r"\frac{\pi}{4}", "pi/3"), (r"\sqrt{x+1}", "√x+1"), (r"\frac{1}{2x}", "1/2*x"))),
    Rule("Numbers in words", in_digits,
         (("25", "twenty-five"), ("2/3", "two-thirds"), (r"\frac12", "二分之一"),
          (r"5\%", "百分之五")),
         (("105", "one hundred and six"), (r"\frac13", "二分之一"))),
    Rule("Typesetting", spell,
         (("42", r"\mathbf{42}"), ("1000000", r"1\,000\,000"), ("x=5", r"5\checkmark"),
          (r"\frac12", r"\dfrac{1}{2}")),
         (("1,2,3,4", "1234"),)),
    # Then both together, for what one side writes and the other leaves out.
    Rule("Units, percent and degrees", spell_both,
         (("90 minutes", "1.5 hours"), (r"5\text{ kJ}", r"5000\text{ J}"),
          (r"12\text{ cm}^2", "12"),
          ("0.125", r"12.5\%"), (r"60^\circ", r"\frac{\pi}{3}"), ("3+4j", "3+4i")),
         ((r"5\text{ kJ}", r"5\text{ J}"), (r"2\,\mathrm{MW}", r"2\,\mathrm{mW}"),
          ("0.5", r"0.5\%"))),
    # And at last what the parser of formulas would misread.
    Rule("Named functions", cut_out,
         ((r"\zeta(2)", r"\frac{\pi^2}{6}"), (r"\varphi(12)", "4"), ("7!!", "105"),
          ("{}_{10}C_3", "120"), (r"\operatorname{erf}(1)", r"\mathrm{erf}(1)")),
         ((r"\zeta(3)", r"3\zeta"), (r"\operatorname{Si}(\pi)", r"\operatorname{Ci}(\pi)"))),
)  # fmt: skip
