"""Chat templates: jinja2 programs that come with a model and write a prompt out of messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contract.errors import TokenizerError
from contract.pipelines.extras import extra

#: Of processor time; real templates take milliseconds.
SECONDS = 5
#: For a machine that is busy with other things.
WALL_SECONDS = 60
MEMORY = 512 << 20
#: A context of a million tokens has some four million.
CHARACTERS = 1 << 22
_CHILD = Path(__file__).with_name("chat_child.py")


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    """The prompt that a template writes, as transformers' apply_chat_template does.

    The template runs in a process of its own, in jinja2's sandbox and with limits of time, memory and output.

    Args:
        template: the program.
        messages: objects with the keys `role` and `content`, and whatever else the template knows.
        add_generation_prompt: end with the head of an answer.
        variables: further ones, `bos_token` and the like.

    Raises:
        TokenizerError: messages of another form, a template that is refused, or that goes over a limit.
        UsageError: jinja2 is not installed.
    """
    extra("jinja2")
    for i, message in enumerate(messages):
        if (
            not isinstance(message, Mapping)
            or not isinstance(message.get("role"), str)
            or "content" not in message
        ):
            raise TokenizerError(f'message {i}: give {{"role": "user", "content": "..."}}')
    given = {
        "messages": [dict(m) for m in messages],
        "add_generation_prompt": add_generation_prompt,
    }
    try:
        payload = json.dumps(
            {"path": sys.path, "template": template, "variables": given | variables, "seconds": SECONDS,
             "memory": MEMORY, "characters": CHARACTERS}
        )  # fmt: skip
    except (TypeError, ValueError, RecursionError) as error:
        raise TokenizerError(
            f"messages are no plain values: {error}; give text, lists and objects"
        ) from error
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", str(_CHILD)], input=payload.encode(), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=WALL_SECONDS, check=False,
        )  # fmt: skip
        answer = json.loads(child.stdout)
    except subprocess.TimeoutExpired as error:
        raise TokenizerError(
            f"the chat template takes more than {WALL_SECONDS} s; give another"
        ) from error
    except ValueError as error:
        raise TokenizerError(
            f"the chat template was ended (status {child.returncode}): more than {SECONDS} s of processor time or"
            f" {MEMORY >> 20} MiB; give another"
        ) from error
    if "error" in answer:
        raise TokenizerError(f"the chat template is refused: {answer['error']}")
    text: str = answer["text"]
    return text
