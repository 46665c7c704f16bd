// What the page does: a conversation, its settings, its errors. `compare` asks one question twice.

import { ApiError, findModel, stream } from "./api.js";
import { compare } from "./compare.js";
import { addSpan, by, pinned } from "./dom.js";
import { addTrees, forgetTrees } from "./drafts.js";
import { Meter } from "./meter.js";

const messages = [];
let model = null;
let running = null;

by("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (asked()) run(talk);
});
by("compare").addEventListener("click", () => {
  if (by("ask").reportValidity() && asked()) run(compareHere);
});
by("stop").addEventListener("click", () => running?.abort());
by("clear").addEventListener("click", clear);
by("temperature").addEventListener("input", () => (by("temperature-shown").value = by("temperature").value));
by("key").addEventListener("change", connect);
by("settings").addEventListener("submit", (event) => event.preventDefault());
by("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
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
    else by("state").textContent = "Stopped.";
  } finally {
    running = null;
    setBusy(false);
    by("question").focus();
  }
}

async function talk(signal) {
  const question = asked();
  addTurn("user", "You said").textContent = question;
  messages.push({ role: "user", content: question });
  by("question").value = "";
  const answer = { text: "" };
  try {
    await show(addTurn("assistant", "The model said"), body(messages, by("speculation").checked), signal, answer);
  } finally {
    if (answer.text) messages.push({ role: "assistant", content: answer.text });
    else messages.pop();
  }
}

async function compareHere(signal) {
  const turns = [{ role: "user", content: asked() }];
  await compare((speculation) => body(turns, speculation), by("key").value, signal);
  by("state").textContent = "Both answers are complete; they stand below.";
}

function asked() {
  return by("question").value.trim();
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

// Streams an answer into `target` and its measurements into the page; `answer.text` is what has come so far.
async function show(target, request, signal, answer) {
  const meter = new Meter();
  forgetTrees();
  for await (const { spans, trees, drafted, usage } of stream(request, by("key").value, signal)) {
    meter.add(drafted, usage);
    pinned(by("turns"), () => {
      for (const [text, was] of spans) {
        answer.text += text;
        addSpan(target, text, was);
      }
    });
    addTrees(trees);
    showFigures(meter);
  }
  by("state").textContent = `The answer is complete: ${meter.tokens} tokens.`;
}

function showFigures(meter) {
  const { tokens, rate, acceptance, firstMilliseconds } = meter;
  by("tokens").textContent = tokens;
  by("rate").textContent = rate === null ? "–" : rate.toFixed(rate < 10 ? 1 : 0);
  by("acceptance").textContent = acceptance?.toFixed(2) ?? "–";
  by("first").textContent = firstMilliseconds === null ? "–" : `${Math.round(firstMilliseconds)} ms`;
}

function addTurn(role, name) {
  const turn = document.createElement("div");
  turn.className = `turn ${role}`;
  turn.setAttribute("role", "article");
  turn.setAttribute("aria-label", name);
  pinned(by("turns"), () => by("turns").append(turn));
  return turn;
}

function clear() {
  messages.length = 0;
  for (const turn of by("turns").querySelectorAll(".turn")) turn.remove();
  by("comparison").hidden = true;
  forgetTrees();
  showFigures({ tokens: "–", rate: null, acceptance: null, firstMilliseconds: null });
  showError(null);
}

function setBusy(busy) {
  for (const id of ["send", "compare", "clear"]) by(id).disabled = busy;
  by("stop").disabled = !busy;
  by("turns").setAttribute("aria-busy", busy);
  if (busy) by("state").textContent = "Answering…";
}

function showError(error) {
  if (error) by("state").textContent = "";
  by("error").hidden = !error;
  by("error").textContent = error ? (error instanceof ApiError ? error.message : "Something went wrong in this page.") : "";
  if (error && !(error instanceof ApiError)) console.error(error);
}
