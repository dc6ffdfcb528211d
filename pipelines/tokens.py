"""Text to tokens and back: the tokenizer and the chat template of a model, from its folder or its GGUF.

    tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    ids = tokenizer.encode(tokenizer.chat([{"role": "user", "content": "Hello"}]))

The tokenizers are those of the `tokenizers` library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.errors import TokenizerError
from contract.pipelines.chat import render_chat
from contract.pipelines.extras import extra
from contract.pipelines.stored import file_size, foreign, read_json

#: Of GGUF: 3 is matched whole and special, 4 is matched whole.
_CONTROL, _USER_DEFINED = 3, 4
_TYPES = (1, 2, _CONTROL, _USER_DEFINED, 5, 6)
_SPECIALS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
_BROKEN = "open the tokenizer of this very model, or download it again"


@dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer.

    Attributes:
        backend: the library's object.
        eos_ids: tokens that end an answer.
        special_tokens: 'bos_token', 'eos_token', ... -> text, for the chat template.
        chat_template: '' where the model has none.
        unwritable: bytes for which there is no token; SmolLM2 lacks some control characters.
    """

    backend: Any
    eos_ids: frozenset[int]
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template: str = ""
    unwritable: frozenset[int] = frozenset()

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a folder of the hub, or of a tokenizer.json with its neighbours.

        Read are tokenizer.json, and where they are there tokenizer_config.json (special tokens, chat template),
        chat_template.jinja, and generation_config.json (ends of an answer).

        Raises:
            TokenizerError: a file that is no tokenizer, or a special token that it does not have.
            CheckpointError: a file that is not there, or no JSON.
            UsageError: `tokenizers` is not installed.
        """
        file = Path(folder)
        file = file / "tokenizer.json" if file.is_dir() else file
        file_size(file)
        library = extra("tokenizers")
        with foreign(file, _BROKEN, TokenizerError):
            backend = library.Tokenizer.from_file(str(file))
        config = _object(file.with_name("tokenizer_config.json"))
        special = {
            key: text
            for key, value in config.items()
            if key.endswith("_token") and (text := _content(value)) is not None
        }
        ends = _object(file.with_name("generation_config.json")).get("eos_token_id")
        if ends is None and "eos_token" in special:
            ends = backend.token_to_id(special["eos_token"])
            if ends is None:
                raise TokenizerError(f"{file} has no token {special['eos_token']!r}; {_BROKEN}")
        eos = ends if isinstance(ends, list) else [] if ends is None else [ends]
        found = cls(backend, frozenset(), special, _template(file, config))
        return cls(backend, frozenset(found.known(eos)), special, found.chat_template)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer in the metadata of a GGUF: byte-level BPE whose digits are split singly (pre = smollm).

        transformers 5.24 reads these files without the split of digits that tokenizer.json and llama.cpp have: two
        spaces before a digit are two tokens there, one here.

        Raises:
            TokenizerError: a field that is missing or of another form, a token twice, a merge of unknown tokens.
            UsageError: `tokenizers` is not installed.
        """
        library = extra("tokenizers")
        tokens = _texts(metadata, "tokens")
        _check_kind(metadata)
        vocab = {token: i for i, token in enumerate(tokens)}
        if len(vocab) != len(tokens):
            twice = next(token for i, token in enumerate(tokens) if vocab[token] != i)
            raise TokenizerError(f"token {twice!r} is there twice; {_BROKEN}")
        merges = [_merge(vocab, merge) for merge in _texts(metadata, "merges")]
        with foreign("tokenizer", _BROKEN, TokenizerError):
            backend = library.Tokenizer(library.models.BPE(vocab=vocab, merges=merges))
            backend.pre_tokenizer = library.pre_tokenizers.Sequence(
                [
                    library.pre_tokenizers.Digits(individual_digits=True),
                    library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                ]
            )
            backend.decoder = library.decoders.ByteLevel()
            for token, kind in zip(tokens, _types(metadata, len(tokens)), strict=True):
                if kind in (_CONTROL, _USER_DEFINED):
                    added = library.AddedToken(token, normalized=False, special=kind == _CONTROL)
                    add = backend.add_special_tokens if kind == _CONTROL else backend.add_tokens
                    add([added])
        ids = {
            name: metadata[f"tokenizer.ggml.{key}"]
            for name, key in _SPECIALS.items()
            if f"tokenizer.ggml.{key}" in metadata
        }
        found = cls(backend, frozenset())
        found.known(ids.values())
        template = metadata.get("tokenizer.chat_template", "")
        if not isinstance(template, str):
            raise TokenizerError(
                f"tokenizer.chat_template is a {type(template).__name__}; {_BROKEN}"
            )
        eos = {ids["eos"]} if "eos" in ids else set()
        if (turn := metadata.get("tokenizer.ggml.eot_token_id")) is not None:
            eos |= set(found.known([turn]))
        special = {f"{name}_token": tokens[i] for name, i in ids.items()}
        lacking = {byte for letter, byte in _byte_letters().items() if letter not in vocab}
        return cls(backend, frozenset(eos), special, template, frozenset(lacking))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """The ids of a text; special tokens in it count as such. Nothing is put before or behind.

        Raises:
            TokenizerError: no text, one with half a character, or one with a byte for which there is no token (the
                library would leave it out without a word).
        """
        with foreign("text", "give whole characters as str", TokenizerError):
            if lacking := self.unwritable.intersection(text.encode()):
                raise TokenizerError(
                    f"no token for byte 0x{min(lacking):02x} of the text; take it out"
                )
            ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
            return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD.

        Raises:
            TokenizerError: an id that is no token.
        """
        text: str = self.backend.decode(self.known(ids), skip_special_tokens=skip_special)
        return text

    def stream(self, *, skip_special: bool = False) -> Stream:
        """A decoder that takes one id after the other."""
        return Stream(self, skip_special)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for some messages, by the model's template: see `chat.render_chat`.

        Raises:
            TokenizerError: the model has no template, or it cannot be rendered.
        """
        if not self.chat_template:
            raise TokenizerError("the model has no chat template; give the prompt as text")
        return render_chat(
            self.chat_template, messages, add_generation_prompt=add_generation_prompt,
            **{**self.special_tokens, **variables},
        )  # fmt: skip

    def known(self, ids: Iterable[int]) -> list[int]:
        """The ids as a list.

        Raises:
            TokenizerError: one that is no token.
        """
        ids = list(ids)
        for i in ids:
            if type(i) is not int or not 0 <= i < 1 << 32 or self.backend.id_to_token(i) is None:
                raise TokenizerError(
                    f"{str(i)[:40]} is no token id; give one below {self.vocab_size}"
                )
        return ids


class Stream:
    """Text of ids that come one by one. Bytes of a character that is not whole yet are held back.

    All that `push` and then `end` give, put together, is what `decode` makes of the same ids.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._stream = extra("tokenizers.decoders").DecodeStream(skip_special_tokens=skip_special)
        self._ids: list[int] = []
        self._given = 0

    def push(self, i: int) -> str:
        """What can be shown since the last call.

        Raises:
            TokenizerError: an id that is no token.
        """
        self._ids += self._tokenizer.known([i])
        with foreign(f"token {i}", "begin a new stream", TokenizerError):
            text: str = self._stream.step(self._tokenizer.backend, i) or ""
        self._given += len(text)
        return text

    def end(self) -> str:
        """What was held back: U+FFFD for a character that never became whole."""
        whole = self._tokenizer.decode(self._ids, skip_special=self._skip_special)
        rest, self._given = whole[self._given :], len(whole)
        return rest


def _check_kind(metadata: Mapping[str, Any]) -> None:
    """Refuse a tokenizer of another kind than the one that is built."""
    for key, read in (
        ("model", ("gpt2",)),
        ("pre", ("smollm",)),
        ("add_bos_token", (False, None)),
        ("add_eos_token", (False, None)),
        ("add_space_prefix", (False, None)),
    ):
        value = metadata.get(f"tokenizer.ggml.{key}")
        if value not in read:
            raise TokenizerError(
                f"tokenizer.ggml.{key} = {str(value)[:80]!r}; {read[0]!r} is read: use the model's tokenizer.json"
            )


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise TokenizerError(f"tokenizer.ggml.{key} is no list of texts; {_BROKEN}")
    return value


def _types(metadata: Mapping[str, Any], count: int) -> list[int]:
    value = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(value, list) or len(value) != count:
        raise TokenizerError(f"tokenizer.ggml.token_type is no list of {count} numbers; {_BROKEN}")
    if odd := [kind for kind in value if kind not in _TYPES]:
        raise TokenizerError(f"a token has type {str(odd[0])[:80]!r}; {_BROKEN}")
    return value


def _merge(vocab: Mapping[str, int], merge: str) -> tuple[str, str]:
    """The two halves of a merge; both and the whole must be tokens."""
    left, _, right = merge.partition(" ")
    for part in (left, right, left + right):
        if part not in vocab:
            raise TokenizerError(f"merge {merge[:80]!r} names {part[:80]!r}, no token; {_BROKEN}")
    return left, right


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in byte-level vocabularies -> the byte.

    Printable ones of Latin-1 stand for themselves, the others in turn for 256, 257, ... (GPT-2, encoder.py).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def _object(file: Path) -> dict[str, Any]:
    """The JSON object of a file; {} where it is not there."""
    if not file.exists():
        return {}
    file_size(file)
    value = read_json(file.read_bytes(), file)
    if not isinstance(value, dict):
        raise TokenizerError(f"{file}: no JSON object; {_BROKEN}")
    return value


def _content(value: Any) -> str | None:
    """The text of a special token, written as such or as an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template(file: Path, config: Mapping[str, Any]) -> str:
    alone = file.with_name("chat_template.jinja")
    if alone.exists():
        file_size(alone)
        with foreign(alone, _BROKEN, TokenizerError):
            return alone.read_text(encoding="utf-8")
    template = config.get("chat_template", "")
    if isinstance(template, list):
        named = {
            item.get("name"): item.get("template") for item in template if isinstance(item, dict)
        }
        template = named.get("default", "")
    if not isinstance(template, str):
        raise TokenizerError(f"{file}: chat_template is a {type(template).__name__}; {_BROKEN}")
    return template
