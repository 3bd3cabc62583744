from edgespec.text.finder import TextFinder


def test_any_of_the_texts_is_found_wherever_it_begins() -> None:
    finder = TextFinder(["<|end|>", "</s>", "<<", "x"])
    assert all(map(finder.any_in, ["<|end|>", "a<<|end|>", "a</s>b", "<<<", "ax"]))
    assert not any(map(finder.any_in, ["", "<|end|", "</", "<|end >", "< <"]))


def test_no_texts_and_empty_texts_are_never_found() -> None:
    assert not TextFinder([]).any_in("a")
    assert not TextFinder([""]).any_in("a")


def test_parts_of_a_text_contain_none_of_the_texts() -> None:
    finder = TextFinder(["</think>", "<<", "x"])
    for text in ("a </think> b", "<<<", "</think></think>", "xx", "", "<</think>>", "plain"):
        parts = finder.cut(text)
        assert "".join(parts) == text
        assert not any(part.count("</think>") or part.count("<<") for part in parts)
    assert finder.cut("plain") == ["plain"]
