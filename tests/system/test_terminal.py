"""What is printed: to a pipe whole lines, without colours."""

from rich.table import Table

from keras_mgpu.system import terminal


def table():
    made = Table("layer", "device")
    made.add_row("block[1]", "GPU:0 " + "x" * 300)
    return made


def test_a_pipe_gets_lines_that_are_not_wrapped_nor_padded(capsys):
    terminal.show("[bold]not markup[/bold]", table())
    out, _ = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "[bold]not markup[/bold]"
    assert any("block[1]" in line and "x" * 300 in line for line in lines)
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in out


def test_what_is_shown_can_be_had_as_text(capsys):
    text = terminal.render(table())
    terminal.show(table())
    assert capsys.readouterr().out == text


def test_json_ends_with_a_line_end():
    assert terminal.to_json({"a": 1}) == '{\n  "a": 1\n}\n'


def test_a_long_list_of_names_is_shortened():
    names = [f"norm_{number}" for number in range(5)]
    assert terminal.fold_names(names[:4], "layers") == "norm_0, norm_1, norm_2, norm_3"
    assert terminal.fold_names(names, "layers") == "norm_0 … norm_4 (5 layers)"
