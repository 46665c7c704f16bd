// What the page does: a conversation, and the same question with speculation on and off.

import { ApiError, findModel, stream } from "./api.js";
import { drawTree } from "./tree.js";

const by = (id) => document.getElementById(id);
const messages = [];
let model = null;
let running = null;

by("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run(talk);
});
by("compare").addEventListener("click", () => by("ask").reportValidity() && run(compare));
by("stop").addEventListener("click", () => running?.abort());
by("clear").addEventListener("click", clear);
by("temperature").addEventListener("input", () => (by("temperature-shown").value = by("temperature").value));
by("key").addEventListener("change", connect);
by("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    if (!running) by("ask").requestSubmit();
  }
});
connect();

async function connect() {
  try {
    model = await findModel(by("key").value);
    by("model").textContent = model;
    showError(null);
  } catch (error) {
    by("key-field").hidden = error.status !== 401 && by("key-field").hidden;
    by("model").textContent = "not connected";
    showError(error);
  }
}

async function run(action) {
  if (running) return;
  running = new AbortController();
  setBusy(true);
  showError(null);
  try {
    if (!model) await connect();
    if (model) await action(running.signal);
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  } finally {
    running = null;
    setBusy(false);
    by("question").focus();
  }
}

async function talk(signal) {
  const question = by("question").value.trim();
  addTurn("user").textContent = question;
  messages.push({ role: "user", content: question });
  by("question").value = "";
  const answer = { text: "" };
  try {
    await show(addTurn("assistant"), body(messages, by("speculation").checked), signal, answer);
  } finally {
    if (answer.text) messages.push({ role: "assistant", content: answer.text });
    else messages.pop();
  }
}

// The same prompt and seed twice, one after the other, so that neither slows the other down.
async function compare(signal) {
  const asked = [{ role: "user", content: by("question").value.trim() }];
  by("comparison").hidden = false;
  by("verdict").textContent = "";
  for (const side of ["on", "off"]) for (const part of ["text", "time"]) by(`${side}-${part}`).textContent = "";
  const results = {};
  for (const [side, enabled] of [["on", true], ["off", false]]) {
    results[side] = await show(by(`${side}-text`), body(asked, enabled), signal, { text: "" });
    by(`${side}-time`).textContent = `${results[side].seconds.toFixed(2)} s`;
  }
  const { on, off } = results;
  const ratio = off.seconds / on.seconds;
  by("verdict").textContent = on.text === off.text
    ? `The same text, ${ratio.toFixed(2)} times as fast with speculation.`
    : "The texts differ. In 16-bit arithmetic rounding can do that; in fp32 it should not happen.";
}

function body(turns, speculation) {
  return {
    model,
    messages: turns,
    temperature: Number(by("temperature").value),
    seed: Number(by("seed").value) || 0,
    max_tokens: Math.max(1, Number(by("max-tokens").value) || 1),
    speculation: { enabled: speculation },
  };
}

// Streams an answer into `target`; returns its text and seconds. Every piece is a text node, whatever it says.
async function show(target, request, signal, answer) {
  const began = performance.now();
  let first = null, tokens = null;
  for await (const { spans, trees, usage } of stream(request, by("key").value, signal)) {
    for (const [text, drafted] of spans) {
      first ??= performance.now();
      answer.text += text;
      addSpan(target, text, drafted);
    }
    if (trees.length) by("tree").replaceChildren(drawTree(trees.at(-1)));
    tokens = usage ?? tokens;
    if (first) by("first").textContent = `${Math.round(first - began)} ms`;
  }
  const seconds = (performance.now() - began) / 1000;
  if (tokens && request.speculation.enabled === by("speculation").checked) {
    by("rate").textContent = Math.round(tokens.completion_tokens / seconds);
    by("acceptance").textContent = tokens.speculation?.acceptance_length?.toFixed(2) ?? "–";
  }
  return { text: answer.text, seconds };
}

function addSpan(target, text, drafted) {
  const pinned = by("turns").scrollHeight - by("turns").scrollTop - by("turns").clientHeight < 40;
  const span = document.createElement("span");
  span.textContent = text;
  if (drafted) span.className = "drafted";
  target.append(span);
  if (pinned) by("turns").scrollTop = by("turns").scrollHeight;
}

function addTurn(role) {
  const turn = document.createElement("div");
  turn.className = `turn ${role}`;
  by("turns").append(turn);
  return turn;
}

function clear() {
  messages.length = 0;
  by("turns").replaceChildren();
  by("comparison").hidden = true;
  showError(null);
}

function setBusy(busy) {
  for (const id of ["send", "compare", "clear"]) by(id).disabled = busy;
  by("stop").disabled = !busy;
}

function showError(error) {
  by("error").hidden = !error;
  by("error").textContent = error ? (error instanceof ApiError ? error.message : "Something went wrong in this page.") : "";
  if (error && !(error instanceof ApiError)) console.error(error);
}
