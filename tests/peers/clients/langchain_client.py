"""LangChain's clients against a server: print the greedy answers as JSON.

python langchain_client.py http://127.0.0.1:8000 QUESTION
"""

import asyncio
import json
import sys

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

LIMIT = {"temperature": 0, "max_tokens": 24}


def stream(model: BaseChatModel, question: str) -> str:
    return "".join(str(chunk.text) for chunk in model.stream(question))


async def astream(model: BaseChatModel, question: str) -> str:
    return "".join([str(chunk.text) async for chunk in model.astream(question)])


def main() -> None:
    url, question = sys.argv[1:]
    openai = {"base_url": f"{url}/v1", "api_key": "secret", "model": "default"}
    chats: dict[str, BaseChatModel] = {
        "ChatOpenAI": ChatOpenAI(**openai, **LIMIT),
        "ChatOpenAI with the Responses API": ChatOpenAI(
            **openai, temperature=0, max_tokens=24, use_responses_api=True
        ),
        "ChatAnthropic": ChatAnthropic(base_url=url, api_key="secret", model="default", **LIMIT),
    }
    found = {}
    for name, chat in chats.items():
        found[name] = str(chat.invoke(question).text)
        found[f"{name}, stream"] = stream(chat, question)
        found[f"{name}, async"] = str(asyncio.run(chat.ainvoke(question)).text)
        found[f"{name}, async stream"] = asyncio.run(astream(chat, question))
    vectors = OpenAIEmbeddings(**openai, check_embedding_ctx_length=False)
    lengths = {len(vector) for vector in vectors.embed_documents([question, "a text"])}
    lengths.add(len(vectors.embed_query(question)))
    completion = OpenAI(**openai, **LIMIT).invoke(question)
    print(json.dumps({"answers": found, "vectors": sorted(lengths), "completion": completion}))


if __name__ == "__main__":
    main()
