// The routes with the vendors' JavaScript clients: print the rows of the table as JSON.
//
//     node routes.mjs http://127.0.0.1:8000
//
// Run it in a folder with `node_modules`. A row has the results of the whole answer ("async") and of
// the stream ("async stream"): "works", "rejected: ..." or "failed: ...".

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI, { toFile } from "openai";

const url = process.argv[2];
const common = { apiKey: "secret", maxRetries: 0, timeout: 120000 };
const openai = new OpenAI({ baseURL: `${url}/v1`, ...common });
const anthropic = new Anthropic({ baseURL: url, ...common });
const ollama = new Ollama({ host: url, headers: { Authorization: "Bearer secret" } });

const QUESTION = "What is the capital of France?";
const messages = [{ role: "user", content: QUESTION }];
const weather = [{ role: "user", content: "What is the weather in Paris?" }];
const chat = { model: "default", temperature: 0, max_tokens: 200 };
const response = { model: "default", temperature: 0, max_output_tokens: 200 };
const schema = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const named = { name: "get_weather", description: "Get the current weather in a city." };
const tool = { type: "function", function: { ...named, parameters: schema } };
const flat = { type: "function", ...named, parameters: schema, strict: true };
const greedy = { model: "default", max_tokens: 200, temperature: 0 };
const local = { model: "starter", options: { temperature: 0, num_predict: 200 } };

async function collect(stream) {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
}

async function until(call, done) {
  for (let i = 0; i < 600; i++) {
    const result = await call();
    if (done(result)) return result;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("not done after a minute");
}

// What the table says of a call that the server rejects with this status and these words.
async function rejected(call, status, ...words) {
  let result;
  try {
    result = await call();
  } catch (error) {
    const found = error.status ?? error.status_code;
    if (found === undefined) throw error;
    assert.equal(found, status, error.message);
    for (const word of words) assert(error.message.includes(word), error.message);
    const detail = error.error?.error ?? error.error ?? {};
    const code = detail.code ?? detail.type;
    return `rejected: ${status}${code ? ` ${code}` : ""}`;
  }
  throw new Error(`not rejected: ${JSON.stringify(result)}`);
}

// Half a second of silence as a WAV file.
function silence() {
  const head = Buffer.alloc(44), data = Buffer.alloc(16000);
  head.write("RIFF"), head.write("WAVEfmt ", 8), head.write("data", 36);
  head.writeUInt32LE(36 + data.length, 4), head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20), head.writeUInt16LE(1, 22);
  head.writeUInt32LE(16000, 24), head.writeUInt32LE(32000, 28);
  head.writeUInt16LE(2, 32), head.writeUInt16LE(16, 34);
  head.writeUInt32LE(data.length, 40);
  return toFile(Buffer.concat([head, data]), "a.wav");
}

const textOf = (message) => message.content.map((block) => block.text ?? "").join("");
const upload = async (text, purpose) =>
  openai.files.create({ file: await toFile(Buffer.from(text), "a.jsonl"), purpose });

const OPENAI = [
  ["POST /v1/chat/completions", "create", async () => {
    const made = await openai.chat.completions.create({ messages, ...chat });
    assert.match(made.choices[0].message.content, /Paris/);
    assert(made.usage.total_tokens > 10);
  }, async () => {
    const chunks = await collect(openai.chat.completions.create({ messages, stream: true, ...chat }));
    assert.match(chunks.map((x) => x.choices[0]?.delta.content ?? "").join(""), /Paris/);
  }],
  ["POST /v1/chat/completions", "create or stream, tools", async () => {
    const made = await openai.chat.completions.create({ messages: weather, tools: [tool], ...chat });
    const [call] = made.choices[0].message.tool_calls;
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  }, async () => {
    const stream = openai.chat.completions.stream({ messages: weather, tools: [tool], ...chat });
    const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  }],
  ["POST /v1/chat/completions", "runTools", async () => {
    const run = {
      ...tool.function, function: () => "sunny, 21 C", parse: JSON.parse,
    };
    const runner = openai.chat.completions.runTools(
      { messages: weather, tools: [{ type: "function", function: run }], ...chat },
    );
    assert.match(await runner.finalContent(), /21/);
  }],
  ["/v1/chat/completions/{id}", "retrieve, list, update, messages.list, delete", async () => {
    const api = openai.chat.completions;
    const made = await api.create({ messages, store: true, metadata: { a: "js" }, ...chat });
    assert.equal((await api.retrieve(made.id)).id, made.id);
    assert.deepEqual((await collect(api.list({ metadata: { a: "js" } }))).map((x) => x.id), [made.id]);
    assert.deepEqual((await api.update(made.id, { metadata: { b: "c" } })).metadata, { b: "c" });
    assert.equal((await collect(api.messages.list(made.id)))[0].content, QUESTION);
    assert((await api.delete(made.id)).deleted);
  }],
  ["POST /v1/completions", "create", async () => {
    const made = await openai.completions.create({ model: "default", prompt: "a", max_tokens: 4 });
    assert.equal(made.object, "text_completion");
  }, async () => {
    const fields = { model: "default", prompt: "a", max_tokens: 4, stream: true };
    const chunks = await collect(openai.completions.create(fields));
    assert(chunks.at(-1).choices[0].finish_reason);
  }],
  ["POST /v1/responses", "create", async () => {
    assert.match((await openai.responses.create({ input: QUESTION, ...response })).output_text, /Paris/);
  }, async () => {
    const events = await collect(openai.responses.create({ input: QUESTION, stream: true, ...response }));
    assert.equal(events.at(-1).type, "response.completed");
    assert.match(events.at(-1).response.output[0].content[0].text, /Paris/);
  }],
  ["POST /v1/responses", "create or stream, tools", async () => {
    const made = await openai.responses.create({ input: weather, tools: [flat], ...response });
    const call = made.output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
  }, async () => {
    const stream = openai.responses.stream({ input: weather, tools: [flat], ...response });
    const call = (await stream.finalResponse()).output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
  }],
  ["/v1/responses/{id}", "retrieve, starting_after, inputItems.list, delete", async () => {
    const made = await openai.responses.create({ input: QUESTION, ...response });
    assert.equal((await openai.responses.retrieve(made.id)).output_text, made.output_text);
    assert.equal((await collect(openai.responses.inputItems.list(made.id))).length, 1);
    await openai.responses.delete(made.id);
    await rejected(() => openai.responses.retrieve(made.id), 404, made.id);
  }, async () => {
    const events = await collect(openai.responses.create({ input: QUESTION, stream: true, ...response }));
    const query = { stream: true, starting_after: 3 };
    const rest = await collect(openai.responses.retrieve(events[0].response.id, query));
    assert.deepEqual(rest, events.slice(4));
  }],
  ["POST /v1/responses/{id}/cancel", "create, background, cancel", async () => {
    const made = await openai.responses.create({ input: QUESTION, background: true, ...response });
    const done = await until(() => openai.responses.retrieve(made.id), (x) => x.status === "completed");
    assert.match(done.output_text, /Paris/);
    const long = { ...schema, properties: { city: { type: "string", minLength: 4000 } } };
    const text = { format: { type: "json_schema", name: "long", schema: long } };
    const fields = { model: "default", max_output_tokens: 900, background: true, text };
    const other = await openai.responses.create({ input: QUESTION, ...fields });
    assert.equal((await openai.responses.cancel(other.id)).status, "cancelled");
  }],
  ["POST /v1/responses/input_tokens", "inputTokens.count", async () => {
    const counted = await openai.responses.inputTokens.count({ model: "default", input: QUESTION });
    assert(counted.input_tokens > 5);
  }],
  ["POST /v1/responses/compact", "compact", () =>
    rejected(() => openai.responses.compact({ model: "default", input: "a" }), 400, "compact")],
  ["/v1/conversations", "conversations and items: all methods", async () => {
    const api = openai.conversations;
    const item = { type: "message", role: "user", content: QUESTION };
    const made = await api.create({ items: [item], metadata: { a: "b" } });
    assert.deepEqual(await api.retrieve(made.id), made);
    assert.deepEqual((await api.update(made.id, { metadata: { c: "d" } })).metadata, { c: "d" });
    const added = (await api.items.create(made.id, { items: [item] })).data[0];
    const where = { conversation_id: made.id };
    assert.equal((await api.items.retrieve(added.id, where)).id, added.id);
    assert.equal((await collect(api.items.list(made.id, { limit: 1 }))).length, 2);
    assert.equal((await api.items.delete(added.id, where)).id, made.id);
    assert((await api.delete(made.id)).deleted);
  }],
  ["POST /v1/embeddings", "create", async () => {
    const both = [];
    for (const encoding_format of ["float", undefined])
      both.push((await openai.embeddings.create({ model: "default", input: "a", encoding_format })).data[0]);
    assert.equal(both[0].embedding.length, both[1].embedding.length);
    assert(Math.abs(both[0].embedding[0] - both[1].embedding[0]) < 1e-6);
  }],
  ["/v1/files", "create, list, retrieve, content, delete", async () => {
    const made = await upload("abc", "user_data");
    assert.equal((await openai.files.retrieve(made.id)).bytes, 3);
    assert((await collect(openai.files.list({ limit: 1 }))).some((file) => file.id === made.id));
    assert.equal(await (await openai.files.content(made.id)).text(), "abc");
    assert((await openai.files.delete(made.id)).deleted);
  }],
  ["/v1/uploads", "create, parts, complete, cancel", async () => {
    const form = { filename: "a", purpose: "user_data", bytes: 3, mime_type: "text/plain" };
    const made = await openai.uploads.create(form);
    const part = await openai.uploads.parts.create(made.id, { data: await toFile(Buffer.from("abc"), "a") });
    const done = await openai.uploads.complete(made.id, { part_ids: [part.id] });
    assert.equal(done.status, "completed");
    await openai.files.delete(done.file.id);
    const other = await openai.uploads.create(form);
    assert.equal((await openai.uploads.cancel(other.id)).status, "cancelled");
  }],
  ["/v1/batches", "create, list, retrieve, output, cancel", async () => {
    const body = { model: "default", prompt: "a", max_tokens: 4 };
    const line = { custom_id: "a", method: "POST", url: "/v1/completions", body };
    const file = await upload(JSON.stringify(line), "batch");
    const made = await openai.batches.create(
      { input_file_id: file.id, endpoint: "/v1/completions", completion_window: "24h" },
    );
    const done = await until(() => openai.batches.retrieve(made.id), (x) => x.status === "completed");
    const output = await (await openai.files.content(done.output_file_id)).text();
    assert.equal(JSON.parse(output).response.status_code, 200);
    assert((await collect(openai.batches.list({ limit: 1 }))).some((batch) => batch.id === made.id));
    await rejected(() => openai.batches.cancel(made.id), 400, "completed");
  }],
  ["/v1/models", "list, retrieve", async () => {
    assert((await collect(openai.models.list())).some((model) => model.id === "starter"));
    assert.equal((await openai.models.retrieve("starter")).id, "starter");
  }],
  ["POST /v1/images/generations", "generate", async () => {
    const made = await openai.images.generate({ model: "painter", prompt: "a", size: "16x16" });
    assert(made.data[0].b64_json.length > 10);
  }, async () => {
    const fields = { model: "painter", prompt: "a", size: "16x16", stream: true };
    const events = await collect(openai.images.generate(fields));
    assert.equal(events.at(-1).type, "image_generation.completed");
  }],
  ["POST /v1/audio/speech", "create", async () => {
    const fields = { model: "speaker", voice: "S1", input: "Hi", response_format: "wav", max_seconds: 0.3 };
    const sound = Buffer.from(await (await openai.audio.speech.create(fields)).arrayBuffer());
    assert.equal(sound.subarray(0, 4).toString(), "RIFF");
  }],
  ["POST /v1/audio/transcriptions", "create", async () => {
    const made = await openai.audio.transcriptions.create({ model: "whisper", file: await silence() });
    assert.equal(typeof made.text, "string");
  }, async () => {
    const fields = { model: "whisper", file: await silence(), stream: true };
    const events = await collect(openai.audio.transcriptions.create(fields));
    assert.equal(events.at(-1).type, "transcript.text.done");
  }],
  ["/v1/moderations", "moderations.create", () =>
    rejected(() => openai.moderations.create({ input: "a" }), 404, "/v1/moderations")],
];

const ANTHROPIC = [
  ["POST /v1/messages", "create", async () => {
    const made = await anthropic.messages.create({ messages, ...greedy });
    assert.match(textOf(made), /Paris/);
    assert.equal(made.stop_reason, "end_turn");
  }, async () => {
    const events = await collect(anthropic.messages.create({ messages, stream: true, ...greedy }));
    assert.equal(events.at(-1).type, "message_stop");
  }],
  ["POST /v1/messages", "create or stream, tools", async () => {
    const tools = [{ ...named, input_schema: schema }];
    const made = await anthropic.messages.create({ messages: weather, tools, ...greedy });
    assert.deepEqual(made.content.find((x) => x.type === "tool_use").input, { city: "Paris" });
  }, async () => {
    const tools = [{ ...named, input_schema: schema }];
    const stream = anthropic.messages.stream({ messages: weather, tools, ...greedy });
    const made = await stream.finalMessage();
    assert.deepEqual(made.content.find((x) => x.type === "tool_use").input, { city: "Paris" });
  }],
  ["POST /v1/messages", "beta: toolRunner", async () => {
    const run = { ...named, type: "custom", input_schema: schema, run: () => "sunny, 21 C", parse: (x) => x };
    const made = await anthropic.beta.messages.toolRunner({ messages: weather, tools: [run], ...greedy });
    assert.match(textOf(made), /21/);
  }],
  ["POST /v1/messages/count_tokens", "countTokens", async () => {
    assert((await anthropic.messages.countTokens({ model: "default", messages })).input_tokens > 5);
  }],
  ["/v1/messages/batches", "batches: all methods", async () => {
    const api = anthropic.messages.batches;
    const requests = [{ custom_id: "a", params: { messages, ...greedy } }];
    const made = await api.create({ requests });
    await until(() => api.retrieve(made.id), (x) => x.processing_status === "ended");
    const [line] = await collect(api.results(made.id));
    assert.match(textOf(line.result.message), /Paris/);
    assert.equal((await collect(api.list({ limit: 1 })))[0].id, made.id);
    await rejected(() => api.cancel(made.id), 400, "completed");
    assert.equal((await api.delete(made.id)).id, made.id);
  }],
  ["/v1/models", "list, retrieve", async () => {
    assert((await collect(anthropic.models.list({ limit: 1 }))).some((model) => model.id === "starter"));
    assert.equal((await anthropic.models.retrieve("starter")).id, "starter");
  }],
];

const OLLAMA = [
  ["POST /api/chat", "chat", async () => {
    const made = await ollama.chat({ messages, ...local });
    assert.match(made.message.content, /Paris/);
  }, async () => {
    const parts = await collect(ollama.chat({ messages, stream: true, ...local }));
    assert.match(parts.map((part) => part.message.content).join(""), /Paris/);
  }],
  ["POST /api/chat", "chat, tools", async () => {
    const made = await ollama.chat({ messages: weather, tools: [tool], ...local });
    assert.deepEqual(made.message.tool_calls[0].function.arguments, { city: "Paris" });
  }],
  ["POST /api/generate", "generate", async () => {
    assert.match((await ollama.generate({ prompt: QUESTION, ...local })).response, /Paris/);
  }, async () => {
    const parts = await collect(ollama.generate({ prompt: QUESTION, stream: true, ...local }));
    assert(parts.at(-1).done);
  }],
  ["/api/embed, /api/embeddings", "embed, embeddings", async () => {
    const made = await ollama.embed({ model: "starter", input: ["a", "b"] });
    const older = await ollama.embeddings({ model: "starter", prompt: "a" });
    assert.equal(made.embeddings.length, 2);
    assert.equal(older.embedding.length, made.embeddings[0].length);
  }],
  ["/api/tags, /api/ps, /api/show, /api/version", "list, ps, show, version", async () => {
    assert((await ollama.list()).models.some((model) => model.name.startsWith("starter")));
    assert((await ollama.ps()).models.some((model) => model.name.startsWith("starter")));
    assert((await ollama.show({ model: "starter" })).capabilities.includes("completion"));
    assert((await ollama.version()).version);
  }],
  ["POST /api/pull", "pull", () => rejected(() => ollama.pull({ model: "a" }), 400, "pull")],
  ["DELETE /api/delete", "delete", () => rejected(() => ollama.delete({ model: "a" }), 400, "delete")],
];

async function outcome(check) {
  try {
    return (await check()) ?? "works";
  } catch (error) {
    return `failed: ${error.name}: ${error.message} ${error.stack?.split("\n").find((x) => x.includes("routes.mjs"))}`;
  }
}

const rows = {};
for (const [client, features] of Object.entries({ openai: OPENAI, anthropic: ANTHROPIC, ollama: OLLAMA })) {
  rows[client] = [];
  for (const [route, feature, whole, stream] of features) {
    const row = { route, feature, async: await outcome(whole) };
    if (stream) row["async stream"] = await outcome(stream);
    rows[client].push(row);
  }
}
console.log(JSON.stringify(rows));
