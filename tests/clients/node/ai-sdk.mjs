// The AI SDK with its provider for OpenAI-like servers: node ai-sdk.mjs URL MODEL PICTURE

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, jsonSchema, streamText, tool } from "ai";
import { report, weather } from "./checks.mjs";

const [url, name, file] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "triptych",
  baseURL: `${url}/v1`,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const image = { type: "image", image: readFileSync(file) };
const common = { model: provider(name), temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const aboutPicture = {
  ...common,
  messages: [{ role: "user", content: [image, { type: "text", text: "What colour is the shape?" }] }],
};
const tools = { weather: tool({ description: "Ahead", inputSchema: jsonSchema(weather) }) };

await report({
  async image() {
    const answer = await generateText(aboutPicture);
    assert.equal(answer.text, "red");
    assert.equal(answer.finishReason, "stop");
    assert.ok(answer.usage.inputTokens > 16);
  },

  async stream() {
    const answer = streamText(aboutPicture);
    let said = "";
    for await (const piece of answer.textStream) said += piece;
    assert.equal(said, "red");
    assert.equal(await answer.finishReason, "stop");
    assert.ok((await answer.usage).outputTokens > 0);
  },

  async structured() {
    const answer = await generateText({
      ...common,
      prompt: "hello",
      output: Output.object({ schema: jsonSchema(weather) }),
    });
    assert.ok(["Paris", "Oslo"].includes(answer.output.city));
  },

  async tools() {
    const fields = { ...common, prompt: "hello", tools, toolChoice: "required" };
    const whole = await generateText(fields);
    assert.equal(whole.finishReason, "tool-calls");
    assert.equal(whole.toolCalls[0].toolName, "weather");
    assert.ok(["Paris", "Oslo"].includes(whole.toolCalls[0].input.city));
    const streamed = await streamText(fields).toolCalls;
    assert.deepEqual(streamed[0].input, whole.toolCalls[0].input);
  },

  async errors() {
    const missing = { ...common, model: provider("other"), prompt: "hello" };
    await assert.rejects(generateText(missing), (error) => {
      assert.ok(APICallError.isInstance(error));
      return error.statusCode === 404 && /other/.test(error.message) && !error.isRetryable;
    });
    const broken = [{ type: "image", image: Buffer.from("none"), mediaType: "image/png" }];
    const messages = [{ role: "user", content: broken }];
    const seen = [];
    const stream = streamText({ ...common, messages, onError: ({ error }) => seen.push(error) });
    await stream.consumeStream();
    assert.equal(seen[0].statusCode, 400);
    assert.match(seen[0].message, /image/);
  },

  async disconnect() {
    const leaving = new AbortController();
    const fields = { ...common, prompt: "hello", maxOutputTokens: 3000, abortSignal: leaving.signal };
    const answer = streamText({ ...fields, providerOptions: { triptych: { ignore_eos: true } } });
    let pieces = 0;
    for await (const _ of answer.textStream) {
      if (++pieces === 3) leaving.abort();
    }
    assert.ok(pieces >= 3);
  },
});
