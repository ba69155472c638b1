"""Parses outputs of gpt-oss with openai-harmony: a program of its environment.

    python harmony.py FOLDER < outputs.json

FOLDER is the environment. Input is a JSON list of texts, output one list per text: channel,
recipient and content of each message.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

RANKS = "node_modules/js-tiktoken/dist/ranks/o200k_base.js"


def write_vocabulary(source: str, folder: Path) -> None:
    """Write the ranks of js-tiktoken as the file that openai-harmony reads."""
    match = re.search(r'"bpe_ranks":("(?:[^"\\]|\\.)*")', source)
    assert match
    lines = []
    for line in json.loads(match[1]).split("\n"):
        if line:
            _, first, *tokens = line.split(" ")
            lines += [f"{token} {rank}" for rank, token in enumerate(tokens, int(first))]
    (folder / "o200k_base.tiktoken").write_text("\n".join(lines) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_vocabulary((Path(sys.argv[1]) / RANKS).read_text(), Path(folder))
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
        from openai_harmony import HarmonyEncodingName, Role, StreamableParser
        from openai_harmony import load_harmony_encoding as load

        encoding, found = load(HarmonyEncodingName.HARMONY_GPT_OSS), []
        for text in json.load(sys.stdin):
            parser = StreamableParser(encoding, role=Role.ASSISTANT)
            for token in encoding.encode(text, allowed_special="all"):
                parser.process(token)
            parser.process_eos()
            found.append(
                [
                    [each.channel, each.recipient, "".join(part.text for part in each.content)]
                    for each in parser.messages
                ]
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
