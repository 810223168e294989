from runmanager.markup import latex, markdown

HOSTILE = "a|b_c*d`e<i>&~$x^2{y}\\z [l](u) % #"


def test_no_text_is_markup_in_markdown():
    text = markdown(["na|me"], [[HOSTILE]], [True])

    assert text.split("\n")[0] == "| na\\|me |"
    assert "<i>" not in text
    assert "\\|b\\_c\\*d\\`e&lt;i>&amp;\\~\\$x^2{y}\\\\z \\[l\\](u)" in text


def test_no_text_is_markup_in_latex():
    text = latex(["na_me"], [["[" + HOSTILE]], [True])

    row = text.split("\\midrule\n")[1]
    assert row.startswith("{}[a\\textbar{}b\\_c*d`e\\textless{}i\\textgreater{}\\&\\textasciitilde{}\\$x")
    assert "\\textasciicircum{}2\\{y\\}\\textbackslash{}z" in row
