// The official Node client against the server whose URL is the argument. Prints one JSON object; the test reads it.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const Answer = z.object({ colour: z.enum(["red", "green", "blue"]), sure: z.boolean() });
const parameters = {
  type: "object",
  properties: { place: { type: "string", enum: ["here", "there"] } },
  required: ["place"],
  additionalProperties: false,
};
const model = "aerie-demo";
const messages = [{ role: "user", content: "Is the sky blue?" }];
const look = { name: "look", parameters, strict: true };
const tools = [{ type: "function", function: look }];
const most = 256; // tokens that end any of these answers, however they are indented
const found = {};

const parsed = await client.chat.completions.parse({
  model, messages, max_tokens: most, response_format: zodResponseFormat(Answer, "answer"),
});
found.parsed = parsed.choices[0].message.parsed;

const stream = client.chat.completions.stream({
  model, messages, max_tokens: most, response_format: zodResponseFormat(Answer, "answer"),
});
found.streamed = (await stream.finalChatCompletion()).choices[0].message.parsed;

const conversation = [...messages];
found.calls = [];
for (const tool_choice of ["required", { type: "function", function: { name: "look" } }, "none"]) {
  const turn = await client.chat.completions.create({
    model, messages: conversation, tools, tool_choice, max_tokens: most, parallel_tool_calls: false,
  });
  const message = turn.choices[0].message;
  conversation.push(message);
  for (const call of message.tool_calls ?? []) {
    found.calls.push(JSON.parse(call.function.arguments));
    conversation.push({ role: "tool", tool_call_id: call.id, content: "blue" });
  }
  found.text = message.content;
}

found.created = (await client.responses.create({ model, input: "Hello", max_output_tokens: 16 })).output_text;
const response = await client.responses.parse({
  model, input: "Hello", max_output_tokens: most, text: { format: zodTextFormat(Answer, "answer") },
});
found.response = response.output_parsed;

const events = client.responses.stream({
  model, input: "Hello", max_output_tokens: most, tools: [{ type: "function", ...look }], tool_choice: "required",
  parallel_tool_calls: false,
});
found.types = [];
for await (const event of events) found.types.push(event.type);
found.items = (await events.finalResponse()).output.map((item) => item.type);

console.log(JSON.stringify(found));
