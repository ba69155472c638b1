// Send every parameter in the types of the vendors' JavaScript clients once, and print the results.
//
//     node parameters.mjs http://127.0.0.1:8000
//
// One JSON object per parameter: route, field, value, whether it is a header, and the status, code,
// param and message of the response. Run it in a folder with `node_modules`.

import { readFileSync } from "node:fs";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI, { toFile } from "openai";

const url = process.argv[2];
const retries = { maxRetries: 0, timeout: 120000 };
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "secret", ...retries });
const anthropic = new Anthropic({ baseURL: url, apiKey: "secret", ...retries });
const PACKAGES = { openai: "openai", anthropic: "@anthropic-ai/sdk" };

// The members of an interface in a declaration file, with those that it inherits.
function members(client, file, name) {
  const text = readFileSync(`node_modules/${PACKAGES[client]}/${file}.d.ts`, "utf8");
  const head = new RegExp(`export interface ${name}(?:<[^{]*?>)?(?: extends ([^{]+?))? \\{\\n`).exec(text);
  if (head === null) throw new Error(`${file}: no interface ${name}`);
  const found = [];
  let depth = 0, comment = "", pending = "";
  for (const line of text.slice(head.index + head[0].length).split("\n")) {
    if (depth === 0 && line === "}") break;
    const bare = line.trim();
    if (bare.startsWith("/**") || bare.startsWith("*")) {
      comment = bare.startsWith("/**") ? bare : `${comment} ${bare}`;
      continue;
    }
    pending += ` ${bare}`;
    depth += (bare.match(/[{([]/g) ?? []).length - (bare.match(/[})\]]/g) ?? []).length;
    if (depth > 0 || !bare.endsWith(";")) continue;
    const [, field, type] = /^\s*['"]?([\w-]+)['"]?\??:\s*([^]*);$/.exec(pending);
    found.push({ field, type, header: /Header param|Optional header/.test(comment) });
    pending = comment = "";
  }
  for (const base of (head[1] ?? "").split(",").filter(Boolean)) {
    const own = new RegExp(`interface ${base.trim()}\\b`).test(text);
    const known = new Set(found.map((each) => each.field));
    const inherited = members(client, own ? file : "core/pagination", base.trim());
    found.push(...inherited.filter((each) => !known.has(each.field)));
  }
  return found;
}

// A value of a type: the first alternative that is not null.
function sample(type) {
  const first = type.trim().replace(/^\| /, "").replace(/^null \| /, "");
  const literal = /^'([^']*)'/.exec(first) ?? /\| '([^']*)'/.exec(first);
  if (first.includes("Uploadable")) return image;
  if (first.startsWith("Array<")) return [sample(first.slice(6))];
  if (/^\(?string\b/.test(first)) return literal?.[1] ?? "x";
  if (first.startsWith("boolean")) return true;
  if (first.startsWith("false")) return false;
  if (/^-?\d/.test(first)) return Number.parseInt(first, 10);
  if (first.startsWith("number")) return 1;
  return literal?.[1] ?? {};
}

const question = [{ role: "user", content: "What is the capital of France?" }];
const tool = { type: "function", name: "f", parameters: { type: "object", properties: {} } };
const VALUES = {
  context_management: [{ type: "compaction" }],
  expires_after: { anchor: "created_at", seconds: 3600 },
  functions: [{ name: "f", parameters: tool.parameters }],
  include: ["message.output_text.logprobs"],
  input: "What is the capital of France?",
  items: question,
  max_completion_tokens: 8,
  max_output_tokens: 8,
  max_tokens: 8,
  messages: question,
  metadata: { a: "b" },
  model: "default",
  prompt_cache_options: { mode: "implicit" },
  reasoning: { effort: "low" },
  requests: [{ custom_id: "a", params: { model: "default", max_tokens: 8, messages: question } }],
  response_format: { type: "text" },
  stop_sequences: ["x"],
  tools: [tool],
  text: { format: { type: "text" } },
  thinking: { type: "disabled" },
};
const named = { name: "f", input_schema: { type: "object" } };
const OWN = {
  "POST /v1/chat/completions tools": [{ type: "function", function: { name: "f", parameters: {} } }],
  "POST /v1/messages tools": [named],
  "POST /v1/messages/count_tokens tools": [named],
  "POST /v1/messages metadata": { user_id: "a" },
  "POST /v1/responses stream_options": { include_obfuscation: false },
};

// Documents for the routes that need one.
const stored = await openai.responses.create({ model: "default", input: "hi", max_output_tokens: 8 });
const conversation = await openai.conversations.create({ items: question });
const [item] = (await openai.conversations.items.list(conversation.id)).data;
const chat = await openai.chat.completions.create({ model: "default", messages: question, max_tokens: 8, store: true });
const lines = JSON.stringify({ custom_id: "a", method: "POST", url: "/v1/completions", body: { prompt: "a" } });
const file = await openai.files.create({ file: await toFile(Buffer.from(lines), "a.jsonl"), purpose: "batch" });
const upload = { filename: "a.txt", purpose: "user_data", bytes: 1, mime_type: "text/plain" };
const made = () => openai.uploads.create(upload);
const image = () => toFile(Buffer.from("x"), "a.png", { type: "image/png" });
const audio = () => toFile(Buffer.from("x"), "a.wav");
const batch = { input_file_id: file.id, endpoint: "/v1/completions", completion_window: "24h" };

// Route, file and interface of its parameters, a minimal request, and the call.
const base = { model: "default", max_tokens: 8 };
const R = "resources";
const ROUTES = [
  ["POST /v1/chat/completions", `${R}/chat/completions/completions`, "ChatCompletionCreateParamsBase",
    { ...base, messages: question }, (p) => openai.chat.completions.create(p)],
  ["GET /v1/chat/completions", `${R}/chat/completions/completions`, "ChatCompletionListParams",
    {}, (p) => openai.chat.completions.list(p)],
  ["POST /v1/chat/completions/{id}", `${R}/chat/completions/completions`, "ChatCompletionUpdateParams",
    {}, (p) => openai.chat.completions.update(chat.id, p)],
  ["GET /v1/chat/completions/{id}/messages", `${R}/chat/completions/messages`, "MessageListParams",
    {}, (p) => openai.chat.completions.messages.list(chat.id, p)],
  ["POST /v1/completions", `${R}/completions`, "CompletionCreateParamsBase",
    { ...base, prompt: "a" }, (p) => openai.completions.create(p)],
  ["POST /v1/embeddings", `${R}/embeddings`, "EmbeddingCreateParams",
    { model: "default", input: "a" }, (p) => openai.embeddings.create(p)],
  ["POST /v1/responses", `${R}/responses/responses`, "ResponseCreateParamsBase",
    { model: "default", input: "a", max_output_tokens: 8 }, (p) => openai.responses.create(p)],
  ["GET /v1/responses/{id}", `${R}/responses/responses`, "ResponseRetrieveParamsBase",
    {}, (p) => openai.responses.retrieve(stored.id, p)],
  ["GET /v1/responses/{id}/input_items", `${R}/responses/input-items`, "InputItemListParams",
    {}, (p) => openai.responses.inputItems.list(stored.id, p)],
  ["POST /v1/responses/input_tokens", `${R}/responses/input-tokens`, "InputTokenCountParams",
    { model: "default", input: "a" }, (p) => openai.responses.inputTokens.count(p)],
  ["POST /v1/conversations", `${R}/conversations/conversations`, "ConversationCreateParams",
    {}, (p) => openai.conversations.create(p)],
  ["POST /v1/conversations/{id}", `${R}/conversations/conversations`, "ConversationUpdateParams",
    {}, (p) => openai.conversations.update(conversation.id, p)],
  ["POST /v1/conversations/{id}/items", `${R}/conversations/items`, "ItemCreateParams",
    { items: question }, (p) => openai.conversations.items.create(conversation.id, p)],
  ["GET /v1/conversations/{id}/items", `${R}/conversations/items`, "ItemListParams",
    {}, (p) => openai.conversations.items.list(conversation.id, p)],
  ["GET /v1/conversations/{id}/items/{item}", `${R}/conversations/items`, "ItemRetrieveParams",
    { conversation_id: conversation.id }, (p) => openai.conversations.items.retrieve(item.id, p)],
  ["POST /v1/images/generations", `${R}/images`, "ImageGenerateParamsBase",
    { prompt: "a" }, (p) => openai.images.generate(p)],
  ["POST /v1/images/edits", `${R}/images`, "ImageEditParamsBase",
    { image, prompt: "a" }, (p) => openai.images.edit(p)],
  ["POST /v1/images/variations", `${R}/images`, "ImageCreateVariationParams",
    { image }, (p) => openai.images.createVariation(p)],
  ["POST /v1/audio/speech", `${R}/audio/speech`, "SpeechCreateParams",
    { model: "default", input: "a", voice: "x" }, (p) => openai.audio.speech.create(p)],
  ["POST /v1/audio/transcriptions", `${R}/audio/transcriptions`, "TranscriptionCreateParamsBase",
    { model: "default", file: audio }, (p) => openai.audio.transcriptions.create(p)],
  ["POST /v1/audio/translations", `${R}/audio/translations`, "TranslationCreateParams",
    { model: "default", file: audio }, (p) => openai.audio.translations.create(p)],
  ["POST /v1/files", `${R}/files`, "FileCreateParams",
    { file: audio, purpose: "user_data" }, (p) => openai.files.create(p)],
  ["GET /v1/files", `${R}/files`, "FileListParams", {}, (p) => openai.files.list(p)],
  ["POST /v1/uploads", `${R}/uploads/uploads`, "UploadCreateParams",
    upload, (p) => openai.uploads.create(p)],
  ["POST /v1/uploads/{id}/parts", `${R}/uploads/parts`, "PartCreateParams",
    { data: audio }, async (p) => openai.uploads.parts.create((await made()).id, p)],
  ["POST /v1/uploads/{id}/complete", `${R}/uploads/uploads`, "UploadCompleteParams",
    { part_ids: ["x"] }, async (p) => openai.uploads.complete((await made()).id, p)],
  ["POST /v1/batches", `${R}/batches`, "BatchCreateParams", batch, (p) => openai.batches.create(p)],
  ["GET /v1/batches", `${R}/batches`, "BatchListParams", {}, (p) => openai.batches.list(p)],
  ["POST /v1/messages", `${R}/messages/messages`, "MessageCreateParamsBase",
    { ...base, messages: question }, (p) => anthropic.messages.create(p)],
  ["POST /v1/messages/count_tokens", `${R}/messages/messages`, "MessageCountTokensParams",
    { model: "default", messages: question }, (p) => anthropic.messages.countTokens(p)],
  ["POST /v1/messages/batches", `${R}/messages/batches`, "BatchCreateParams",
    { requests: VALUES.requests }, (p) => anthropic.messages.batches.create(p)],
  ["GET /v1/messages/batches", `${R}/messages/batches`, "BatchListParams",
    {}, (p) => anthropic.messages.batches.list(p)],
  ["GET /v1/models", `${R}/models`, "ModelListParams", {}, (p) => anthropic.models.list(p)],
];

// The request with one parameter, whose files are made anew.
async function filled(request) {
  const made = {};
  for (const [name, value] of Object.entries(request))
    made[name] = typeof value === "function" ? await value() : value;
  return made;
}

async function drive([route, path, name, request, call]) {
  const client = route.includes("/v1/messages") || route === "GET /v1/models" ? "anthropic" : "openai";
  for (const { field, type, header } of members(client, path, name)) {
    const fixed = OWN[`${route} ${field}`] ?? VALUES[field] ?? sample(type);
    const value = field in request ? request[field] : fixed;
    const result = { route, field, header, value, status: 200 };
    try {
      const answer = await call(await filled({ ...request, [field]: value }));
      if (answer?.[Symbol.asyncIterator] && value === true) for await (const _ of answer);
      else result.echo = answer?.[field];
    } catch (error) {
      const detail = error.error?.error ?? error.error ?? {};
      const { code, param, message } = detail;
      Object.assign(result, { status: error.status ?? 0, code, param, message: message ?? `${error}` });
    }
    console.log(JSON.stringify(result));
  }
}

for (const route of ROUTES) await drive(route);
