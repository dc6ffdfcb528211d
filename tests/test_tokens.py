"""Tokenizers and chat templates: literal ids, transformers beside them, and what is refused."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from contract.errors import CheckpointError, TokenizerError
from contract.pipelines import chat
from contract.pipelines.chat import render_chat
from contract.pipelines.checkpoints import open_checkpoint
from contract.pipelines.packages import SMOLLM2, package_file
from contract.pipelines.tokens import Tokenizer

pytest.importorskip("tokenizers", reason="tokenizers is an extra: [models]")
pytest.importorskip("jinja2", reason="jinja2 is an extra: [models]")

#: The letters of GPT-2's byte-level vocabularies, by byte: its encoder.py, written out.
LETTERS = (
    "ĀāĂăĄąĆćĈĉĊċČčĎďĐđĒēĔĕĖėĘęĚěĜĝĞğĠ!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"
    "abcdefghijklmnopqrstuvwxyz{|}~ġĢģĤĥĦħĨĩĪīĬĭĮįİıĲĳĴĵĶķĸĹĺĻļĽľĿŀŁł¡¢£¤¥¦§¨©ª«¬Ń®¯°±²³´µ¶·¸¹º»¼½¾¿"  # noqa: RUF001 - these very letters
    "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ"  # noqa: RUF001
)
SPECIAL = ["<|pad|>", "<|start|>", "<|end|>"]
WORDS = ["ĠĠ", "Ġa", "ab", "Ġab", "12", "Ã©"]
TEMPLATE = (
    "{% for m in messages %}\n  <|start|>{{ m['role'] }}: {{ m['content'] }}<|end|>\n{% endfor %}\n"
)


def metadata(**changes: Any) -> dict[str, Any]:
    """Three special tokens, the 256 bytes (byte b is token b + 3), and six words from 259 on."""
    fields = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [*SPECIAL, *LETTERS, *WORDS],
        "token_type": [3] * 3 + [1] * 262,
        "merges": ["Ġ Ġ", "Ġ a", "a b", "Ġa b", "1 2", "Ã ©"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 0,
    } | changes
    found = {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}
    return found | {"tokenizer.chat_template": TEMPLATE}


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_gguf(metadata())


def test_bytes_merge_and_digits_stand_alone(tiny: Tokenizer) -> None:
    byte = {chr(b): b + 3 for b in range(128)}
    assert len(LETTERS) == 256
    assert tiny.encode(" ab") == [262]
    assert tiny.encode("é") == [264]
    assert tiny.encode("") == []
    # never the token "12", though there is one
    assert tiny.encode("12") == [byte["1"], byte["2"]]
    # the digit is split off before the spaces are looked at: both are one token
    assert tiny.encode("a  1") == [byte["a"], 259, byte["1"]]
    # two spaces before a letter: one of them belongs to the word
    assert tiny.encode("a  ab") == [byte["a"], byte[" "], 262]
    assert tiny.encode("<|start|>a<|end|>") == [1, byte["a"], 2]
    assert tiny.vocab_size == 265
    assert tiny.eos_ids == {2}
    assert tiny.special_tokens == {
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
    }


def test_text_comes_back(tiny: Tokenizer) -> None:
    for text in ("", " ab  12\n\t", "naïve 日本語 👩‍👩‍👧", "\x00\x7f\x80", "<|start|>x"):
        assert tiny.decode(tiny.encode(text)) == text
    assert tiny.decode([1, 262, 2]) == "<|start|> ab<|end|>"
    assert tiny.decode([1, 262, 2], skip_special=True) == " ab"
    assert tiny.decode([0xC3 + 3]) == "\ufffd"


def test_an_end_of_turn_ends_too() -> None:
    assert Tokenizer.from_gguf(metadata(eot_token_id=0)).eos_ids == {0, 2}
    assert Tokenizer.from_gguf(metadata(eos_token_id=None)).eos_ids == set()


def test_user_defined_tokens_are_whole_and_no_special_ones() -> None:
    found = Tokenizer.from_gguf(metadata(token_type=[3, 3, 3, *[1] * 261, 4]))
    assert found.encode("é") == [264]
    spelled = Tokenizer.from_gguf(metadata(token_type=[4, 3, 3, *[1] * 262]))
    assert spelled.encode("a<|pad|>") == [100, 0]
    assert spelled.decode([0], skip_special=True) == "<|pad|>"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "llama"}, r"tokenizer\.ggml\.model = 'llama'; 'gpt2' is read"),
        ({"pre": None}, r"tokenizer\.ggml\.pre = 'None'; 'smollm' is read"),
        ({"add_bos_token": True}, r"tokenizer\.ggml\.add_bos_token = 'True'; False is read"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens is no list of texts"),
        ({"tokens": ["a", 1]}, "is no list of texts"),
        ({"merges": "a b"}, r"tokenizer\.ggml\.merges is no list of texts"),
        ({"tokens": [*SPECIAL, *LETTERS, *WORDS[:-1], "ab"]}, "token 'ab' is there twice"),
        ({"merges": ["a b", "x y"]}, "merge 'x y' names 'xy', no token"),
        ({"merges": ["日 b"]}, "merge '日 b' names '日', no token"),
        ({"merges": ["ab"]}, "merge 'ab' names '', no token"),
        ({"token_type": [1]}, "is no list of 265 numbers"),
        ({"token_type": [9] * 265}, "a token has type '9'"),
        ({"eos_token_id": 265}, "265 is no token id; give one below 265"),
        ({"bos_token_id": -1}, "-1 is no token id"),
        ({"bos_token_id": "1"}, "1 is no token id"),
    ],
)
def test_a_broken_tokenizer_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        Tokenizer.from_gguf(metadata(**changes))


@pytest.mark.parametrize("wrong", [-1, 265, 1 << 32, 1 << 70, True, 1.0, "1", None])
def test_an_id_out_of_range_is_refused(tiny: Tokenizer, wrong: Any) -> None:
    with pytest.raises(TokenizerError, match="is no token id; give one below 265"):
        tiny.decode([5, wrong])
    with pytest.raises(TokenizerError, match="is no token id; give one below 265"):
        tiny.stream().push(wrong)


def test_a_text_that_cannot_be_written_is_refused(tiny: Tokenizer) -> None:
    for wrong in ("\ud800", 7, None, b"a"):
        with pytest.raises(TokenizerError, match="give whole characters as str"):
            tiny.encode(wrong)  # type: ignore[arg-type]
    tokens = [*SPECIAL, *LETTERS.replace(LETTERS[4], "日"), *WORDS]
    lacking = Tokenizer.from_gguf(metadata(tokens=tokens, merges=["1 2"]))
    assert lacking.encode("a") == [100]
    with pytest.raises(TokenizerError, match="no token for byte 0x04 of the text; take it out"):
        lacking.encode("a\x04")


def pieces(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    stream = tokenizer.stream(**options)
    return [*(stream.push(i) for i in ids), stream.end()]


def test_a_stream_holds_half_a_character_back(tiny: Tokenizer) -> None:
    euro = [byte + 3 for byte in "€".encode()]
    assert pieces(tiny, [100, *euro, 101]) == ["a", "", "", "€", "b", ""]
    assert pieces(tiny, euro[:2]) == ["", "", "\ufffd"]
    assert pieces(tiny, [1, 100, 2], skip_special=True) == ["", "a", "", ""]


def test_a_stream_gives_what_decode_gives(tiny: Tokenizer) -> None:
    """Any ids, half and wrong characters among them; nothing shown is taken back."""
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.choice([rng.randrange(265), rng.randrange(0x80, 0x100) + 3]) for _ in range(12)]
        for skip in (False, True):
            found = pieces(tiny, ids, skip_special=skip)
            assert "".join(found) == tiny.decode(ids, skip_special=skip)


def in_folder(folder: Path, tiny: Tokenizer, **files: Any) -> Tokenizer:
    (folder / "tokenizer.json").write_text(tiny.backend.to_str())
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return Tokenizer.from_folder(folder)


def test_a_folder_of_the_hub_is_read(tmp_path: Path, tiny: Tokenizer) -> None:
    alone = in_folder(tmp_path, tiny)
    assert (alone.eos_ids, alone.chat_template) == (frozenset(), "")
    assert alone.encode(" ab 12<|end|>") == tiny.encode(" ab 12<|end|>")
    config = {
        "eos_token": {"content": "<|end|>"},
        "bos_token": "<|start|>",
        "pad_token": None,
        "chat_template": "a",
    }
    found = in_folder(tmp_path, tiny, tokenizer_config=config)
    assert found.eos_ids == {2}
    assert found.special_tokens == {"eos_token": "<|end|>", "bos_token": "<|start|>"}
    assert found.chat_template == "a"
    assert in_folder(tmp_path, tiny, generation_config={"eos_token_id": [0, 2]}).eos_ids == {0, 2}
    named = {
        "chat_template": [{"name": "tool", "template": "b"}, {"name": "default", "template": "c"}]
    }
    assert in_folder(tmp_path, tiny, tokenizer_config=named).chat_template == "c"
    (tmp_path / "chat_template.jinja").write_text("d")
    assert Tokenizer.from_folder(tmp_path / "tokenizer.json").chat_template == "d"


def test_a_broken_folder_is_refused(tmp_path: Path, tiny: Tokenizer) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: No such file or directory"):
        Tokenizer.from_folder(tmp_path)
    for text in ("{", "[]", '{"model": {"type": "BPE"}}', "[" * 10_000):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(TokenizerError, match=r"tokenizer\.json: "):
            Tokenizer.from_folder(tmp_path)
    with pytest.raises(TokenizerError, match=r"has no token '<\|no\|>'"):
        in_folder(tmp_path, tiny, tokenizer_config={"eos_token": "<|no|>"})
    with pytest.raises(TokenizerError, match="chat_template is a int"):
        in_folder(tmp_path, tiny, tokenizer_config={"chat_template": 1})
    with pytest.raises(TokenizerError, match="999 is no token id"):
        in_folder(tmp_path, tiny, tokenizer_config={}, generation_config={"eos_token_id": 999})


HELLO = [{"role": "user", "content": "Hello"}]


def test_a_template_writes_the_prompt(tiny: Tokenizer) -> None:
    """Blocks leave neither their line's end nor their indent."""
    assert tiny.chat(HELLO) == "  <|start|>user: Hello<|end|>\n"
    assert (
        render_chat("{{ bos_token }}{{ add_generation_prompt }}", HELLO, bos_token="<s>")
        == "<s>True"
    )
    assert render_chat("{{ {'a': '<é>'} | tojson }}{{ x.y }}", HELLO, x={"y": 1}) == '{"a": "<é>"}1'
    assert (
        render_chat(
            "  {% if true %}a{% endif %}\n{% for m in messages %}{% break %}{% endfor %}", []
        )
        == "a"
    )
    with pytest.raises(TokenizerError, match="no chat template; give the prompt as text"):
        Tokenizer(tiny.backend, frozenset()).chat(HELLO)


HOSTILE = {
    "its own error": ("{{ raise_exception('only user messages') }}", "refused: TemplateError: only user messages"),
    "syntax": ("{% for %}", "refused: TemplateSyntaxError"),
    "a long range": ("{% for i in range(10**9) %}{% endfor %}", "refused: OverflowError: Range too big"),
    "the inside": ("{{ ''.__class__ }}", "SecurityError: attribute '__class__' of str is not allowed"),
    "the inside, asked": ("{{ messages['__class__'] }}", "SecurityError: attribute '__class__' of list"),
    "a filter": ("{{ ''|attr('__class__') }}", "SecurityError: attribute '__class__' of str"),
    "a format": ("{{ '{0.__class__}'.format(1) }}", "SecurityError: attribute '__class__' of int"),
    "a change": ("{{ messages.append(1) }}", "SecurityError"),
    "an import": ("{% include '/etc/passwd' %}", "refused: TypeError: no loader"),
    "output": ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "more than 4194304 characters"),
    "memory": ("{{ ('a' * 10**10)|length }}", "it needs more than 512 MiB"),
    "doubled": (
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x|length }}",
        # on a busy machine the limit of time comes first
        "more than (1 s of processor time or )?512 MiB",
    ),
    "deep": ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "refused|was ended"),
    "power": ("{{ 9**(9**9) }}", "was ended .*: more than 1 s of processor time"),
    "loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "was ended .*: more than 1 s of processor time",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_template_is_ended(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    template, said = HOSTILE[fault]
    monkeypatch.setattr(chat, "SECONDS", 1)
    start = os.times()
    with pytest.raises(TokenizerError, match=said):
        render_chat(template, HELLO)
    end = os.times()
    assert end.children_user + end.children_system - start.children_user - start.children_system < 4


def test_a_template_that_only_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "WALL_SECONDS", 0.05)
    start = time.monotonic()
    with pytest.raises(TokenizerError, match=r"takes more than 0\.05 s"):
        render_chat(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", HELLO
        )
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (["Hello"], "message 0: give"),
        ([{"role": "user"}], "message 0: give"),
        ([*HELLO, {"role": 1, "content": ""}], "message 1: give"),
        ([{"role": "user", "content": {1, 2}}], "no plain values"),
        ([{"role": "user", "content": object()}], "no plain values"),
    ],
)
def test_messages_of_another_form_are_refused(messages: Any, said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        render_chat("x", messages)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        return package_file(SMOLLM2)
    except CheckpointError as error:
        pytest.skip(f"the package file of {SMOLLM2.distribution} is absent: {error}")


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_checkpoint(smollm2).metadata)


STRINGS = (
    "", " ", "  ", "\n", "Hello, world!", " leading", "trailing ", "a  b   c", "don't can't I'll we've",
    "The capital of France is", "12345 3.14 1e-5 2024-01-01", "x1y2z3", "½ ² ٣٤ Ⅷ", "naïve café Straße",
    "日本語のテキスト", "Привет, мир", "مرحبا", "नमस्ते", "👩‍👩‍👧‍👦 🎉", "e\u0301 é", "tab\tand\r\nlines\n\n\nend",
    "def f(x):\n    return x ** 2\n", "<|im_start|>user\nHi<|im_end|>\n", "<|im_start", "<repo_name>a/b<file_sep>",
    "https://example.com/?q=a%20b&c=d#e", "\u00a0\u2003\u200b", "AAAAAAAAAAAAAAAA", "$\\frac{a}{b}$ — “quoted”", "\U0010ffff",
)  # fmt: skip


def test_a_real_vocabulary_reads_a_question(real: Tokenizer) -> None:
    assert (real.vocab_size, set(real.eos_ids)) == (49152, {2})
    ids = real.encode(real.chat([{"role": "user", "content": "Hi"}]))
    assert real.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids[:3] == [1, 9690, 198]
    for text in STRINGS:
        assert "".join(pieces(real, real.encode(text))) == text


@pytest.mark.slow
def test_transformers_reads_the_same(real: Tokenizer, smollm2: Path) -> None:
    """Some ten seconds, all in transformers. Its pre-tokenizer lacks the split of digits, which is put back."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import pre_tokenizers

    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    assert len(STRINGS) == 30

    def same(texts: tuple[str, ...]) -> list[str]:
        return [t for t in texts if real.encode(t) == theirs.encode(t, add_special_tokens=False)]

    # numbers that are no ASCII digits, and spaces before a digit
    texts = (*STRINGS, "a  1")
    assert [text for text in texts if text not in same(texts)] == ["½ ² ٣٤ Ⅷ", "a  1"]
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    assert same(texts) == list(texts)
    for messages in (
        HELLO,
        [
            {"role": "system", "content": "Be brief."},
            *HELLO,
            {"role": "assistant", "content": "Hi"},
        ],
    ):
        for head in (True, False):
            ours = real.chat(messages, add_generation_prompt=head)
            assert ours == theirs.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=head
            )
