"""Tools and schemas in LlamaIndex's client.

python tools_llama_index.py http://127.0.0.1:8000 [FEATURE ...]
"""

from typing import Any

from features import (
    KEY,
    LIMIT,
    QUESTION,
    SENTENCE,
    GetWeather,
    Person,
    Result,
    answered,
    get_weather,
    parsed,
    run_all,
)
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def model(url: str, **fields: Any) -> OpenAILike:
    return OpenAILike(
        api_base=f"{url}/v1",
        api_key=KEY,
        model="default",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=1024,
        temperature=0,
        max_tokens=LIMIT,
        max_retries=0,
        **fields,
    )


def tool() -> FunctionTool:
    return FunctionTool.from_defaults(get_weather)


def called(llm: OpenAILike, response: Any) -> Result:
    selections = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
    return {"calls": [(call.tool_name, call.tool_kwargs) for call in selections]}


def chat_with_tools(url: str) -> Result:
    llm = model(url)
    return called(llm, llm.chat_with_tools([tool()], user_msg=QUESTION))


def chat_with_tools_required(url: str) -> Result:
    llm = model(url)
    return called(llm, llm.chat_with_tools([tool()], user_msg=QUESTION, tool_required=True))


def stream_chat_with_tools(url: str) -> Result:
    llm = model(url)
    *_, last = llm.stream_chat_with_tools([tool()], user_msg=QUESTION, tool_required=True)
    return called(llm, last)


def predict_and_call(url: str) -> Result:
    return answered(model(url).predict_and_call([tool()], user_msg=QUESTION))


async def function_agent(url: str) -> Result:
    agent = FunctionAgent(tools=[tool()], llm=model(url), streaming=False)
    return answered(await agent.run(QUESTION, max_iterations=4))


async def function_agent_stream(url: str) -> Result:
    agent = FunctionAgent(tools=[tool()], llm=model(url))
    handler = agent.run(QUESTION, max_iterations=4)
    async for _ in handler.stream_events():
        pass
    return answered(await handler)


def structured_llm(url: str) -> Result:
    llm = model(url).as_structured_llm(GetWeather)
    return parsed(llm.chat([ChatMessage(role="user", content=QUESTION)]).raw)


def structured_predict(url: str) -> Result:
    return parsed(model(url).structured_predict(GetWeather, PromptTemplate(QUESTION)))


def structured_output(url: str) -> Result:
    """By a schema instead of a call."""
    llm = model(url, should_use_structured_outputs=True)
    return parsed(llm.structured_predict(Person, PromptTemplate(SENTENCE)))


def stream_structured_predict(url: str) -> Result:
    *_, last = model(url).stream_structured_predict(Person, PromptTemplate(SENTENCE))
    return parsed(Person(**last.model_dump()))


if __name__ == "__main__":
    run_all(
        {
            "chat_with_tools": chat_with_tools,
            "chat_with_tools, required": chat_with_tools_required,
            "stream_chat_with_tools, required": stream_chat_with_tools,
            "predict_and_call": predict_and_call,
            "FunctionAgent": function_agent,
            "FunctionAgent, stream": function_agent_stream,
            "as_structured_llm": structured_llm,
            "structured_predict": structured_predict,
            "structured_predict, structured outputs": structured_output,
            "stream_structured_predict": stream_structured_predict,
        }
    )
