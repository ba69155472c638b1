// The vendors' JavaScript clients against a server: print the greedy answers as JSON.
//
//     node javascript.mjs http://127.0.0.1:8000 QUESTION
//
// NODE_PATH does not apply to modules: run it in a folder with `node_modules`.

import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

const [url, question] = process.argv.slice(2);
const messages = [{ role: "user", content: question }];
const answers = {};

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "secret" });
const chat = { model: "default", messages, temperature: 0, max_tokens: 24 };
answers["openai"] = (await openai.chat.completions.create(chat)).choices[0].message.content;
let text = "";
for await (const chunk of await openai.chat.completions.create({ ...chat, stream: true }))
  text += chunk.choices[0]?.delta.content ?? "";
answers["openai, stream"] = text;
answers["openai, stream helper"] = await openai.chat.completions.stream(chat).finalContent();
const response = { model: "default", input: question, temperature: 0, max_output_tokens: 24 };
answers["openai, responses"] = (await openai.responses.create(response)).output_text;
answers["openai, responses stream helper"] = (
  await openai.responses.stream(response).finalResponse()
).output_text;

const anthropic = new Anthropic({ baseURL: url, apiKey: "secret" });
const message = { model: "default", messages, temperature: 0, max_tokens: 24 };
answers["anthropic"] = (await anthropic.messages.create(message)).content[0].text;
answers["anthropic, stream helper"] = await anthropic.messages.stream(message).finalText();

const ollama = new Ollama({ host: url, headers: { Authorization: "Bearer secret" } });
const options = { temperature: 0, num_predict: 24 };
answers["ollama"] = (
  await ollama.chat({ model: "default", messages, options })
).message.content;
text = "";
for await (const part of await ollama.chat({ model: "default", messages, options, stream: true }))
  text += part.message.content;
answers["ollama, stream"] = text;

const vectors = [
  (await openai.embeddings.create({ model: "default", input: question })).data[0].embedding.length,
  (await ollama.embed({ model: "default", input: question })).embeddings[0].length,
];
const counted = await anthropic.messages.countTokens({ model: "default", messages });
const models = [];
for await (const model of openai.models.list()) models.push(model.id);
for await (const model of anthropic.models.list()) models.push(model.id);
for (const model of (await ollama.list()).models) models.push(model.model);
console.log(JSON.stringify({ answers, vectors, tokens: counted.input_tokens, models }));
