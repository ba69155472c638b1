"""LlamaIndex's clients against a server: print the greedy answers as JSON.

python llama_index_client.py http://127.0.0.1:8000 QUESTION
"""

import asyncio
import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike


async def collect(model: OpenAILike, messages: list[ChatMessage]) -> str:
    return "".join([chunk.delta or "" async for chunk in await model.astream_chat(messages)])


def main() -> None:
    url, question = sys.argv[1:]
    server = {"api_base": f"{url}/v1", "api_key": "secret"}
    model = OpenAILike(
        **server,
        model="default",
        is_chat_model=True,
        context_window=1024,
        temperature=0,
        max_tokens=24,
    )
    messages = [ChatMessage(role="user", content=question)]
    found = {
        "OpenAILike": model.chat(messages).message.content,
        "OpenAILike, stream": "".join(part.delta or "" for part in model.stream_chat(messages)),
        "OpenAILike, async": asyncio.run(model.achat(messages)).message.content,
        "OpenAILike, async stream": asyncio.run(collect(model, messages)),
    }
    vectors = OpenAILikeEmbedding(**server, model_name="default")
    lengths = {len(vector) for vector in vectors.get_text_embedding_batch([question, "a text"])}
    print(json.dumps({"answers": found, "vectors": sorted(lengths)}))


if __name__ == "__main__":
    main()
