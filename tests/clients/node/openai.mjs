// OpenAI's client for Node: node openai.mjs URL MODEL PICTURE

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { report, weather } from "./checks.mjs";

const [url, model, file] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60000 });
const picture = `data:image/png;base64,${readFileSync(file).toString("base64")}`;
const image = { type: "image_url", image_url: { url: picture } };
const text = (words) => ({ type: "text", text: words });

const asked = (content, fields = {}) => ({
  model,
  messages: [{ role: "user", content }],
  temperature: 0,
  max_completion_tokens: 200,
  ...fields,
});
const aboutPicture = (fields) => asked([image, text("What colour is the shape?")], fields);
const tools = [{ type: "function", function: { name: "weather", description: "Ahead", parameters: weather } }];

await report({
  async image() {
    const answer = await client.chat.completions.create(aboutPicture());
    assert.equal(answer.choices[0].message.content, "red");
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.ok(answer._request_id);
    assert.equal((await client.models.list()).data[0].id, model);
  },

  async stream() {
    let said = "";
    let usage;
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create(aboutPicture(options))) {
      said += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(said, "red");
    assert.ok(usage.completion_tokens > 0);
    const helper = client.chat.completions.stream(aboutPicture());
    assert.equal((await helper.finalChatCompletion()).choices[0].message.content, "red");
  },

  async responses() {
    const content = [{ type: "input_image", image_url: picture }, { type: "input_text", text: "What colour is it?" }];
    const answer = await client.responses.create({ model, input: [{ role: "user", content }], temperature: 0 });
    assert.equal(answer.output_text, "red");
  },

  async structured() {
    const json_schema = { name: "weather", strict: true, schema: weather };
    const answer = await client.chat.completions.create(
      asked("hello", { response_format: { type: "json_schema", json_schema } }),
    );
    assert.ok(["Paris", "Oslo"].includes(JSON.parse(answer.choices[0].message.content).city));
  },

  async tools() {
    const fields = { tools, tool_choice: "required", parallel_tool_calls: false };
    const whole = (await client.chat.completions.create(asked("hello", fields))).choices[0];
    const wanted = JSON.parse(whole.message.tool_calls[0].function.arguments);
    assert.ok(["Paris", "Oslo"].includes(wanted.city));
    const helper = client.chat.completions.stream(asked("hello", fields));
    const streamed = (await helper.finalChatCompletion()).choices[0].message.tool_calls;
    assert.equal(streamed[0].function.name, "weather");
    assert.ok(streamed[0].id);
    assert.deepEqual(JSON.parse(streamed[0].function.arguments), wanted);
  },

  async errors() {
    const bad = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
    for (const stream of [false, true]) {
      await assert.rejects(client.chat.completions.create(asked("hello", { model: "other", stream })), (error) => {
        assert.ok(error instanceof OpenAI.NotFoundError);
        return error.code === "model_not_found" && error.param === "model";
      });
      await assert.rejects(client.chat.completions.create(asked([bad], { stream })), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError);
        return error.param === "messages[0].content[0].image_url.url" && Boolean(error.requestID);
      });
    }
  },

  async disconnect() {
    const fields = { stream: true, ignore_eos: true, max_completion_tokens: 3000 };
    let pieces = 0;
    for await (const _ of await client.chat.completions.create(asked("hello", fields))) {
      if (++pieces === 3) break;
    }
    assert.equal(pieces, 3);
  },
});
