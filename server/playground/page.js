// The page's behavior: a conversation, its settings, its errors. `compare` asks one question twice.

import { ApiError, stream } from "./api.js";
import { compare } from "./compare.js";
import { Connection } from "./connection.js";
import { Conversation, join } from "./conversation.js";
import { by, pinned } from "./dom.js";
import { addTrees, forgetTrees } from "./drafts.js";
import { forgetExample, nextText, showExamples } from "./examples.js";
import { form } from "./form.js";
import { Meter } from "./meter.js";
import { readPlan } from "./planner.js";
import { Regions } from "./regions.js";

let conversation = new Conversation();
const connection = new Connection(showConnection);
let model = null;
let away = false;
let loading = false;
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
by("key").addEventListener("change", () => {
  showError(null);
  connect();
});
by("settings").addEventListener("submit", (event) => event.preventDefault());
by("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running) by("ask").requestSubmit();
  }
});
connect();
showExamples(clear);

function connect() {
  return connection.look(by("key").value);
}

// Called after each check of the server, possibly while an answer arrives.
function showConnection({ model: found, error }) {
  const returned = away && !error;
  away = Boolean(error);
  model = error ? null : found;
  loading = error?.code === "starting";
  by("model").textContent = loading ? `${found}, loading…` : (model ?? "not connected");
  if (running) return;
  setBusy(false);
  if (returned) {
    showError(null);
    by("state").textContent = "The server is ready.";
  } else if (loading) {
    showError(null);
    by("state").textContent = "The model is still being loaded. You can write your message.";
  } else if (error && by("error").hidden) showError(error);
}

async function run(action) {
  if (running) return;
  running = new AbortController();
  setBusy(true);
  showError(null);
  let failure = null;
  try {
    const { error } = model ? {} : await connect();
    if (error) throw error;
    await action(running.signal);
  } catch (error) {
    if (error.name !== "AbortError") failure = error;
    else by("state").textContent = "Stopped.";
  } finally {
    running = null;
    setBusy(false);
    by("question").focus();
  }
  if (failure) showError(failure);
  if (failure && failure.status !== 400) await connect();
}

// Puts a text without a complete answer back into the input, unless the user stopped its answer. An answer is asked for
// once every call of the last one has its result.
async function talk(signal) {
  const text = asked();
  const { owed } = conversation;
  const said = owed ? addTurn("tool", `${owed.function.name} returned`) : addTurn("user", "You said");
  said.textContent = text;
  conversation.say(text);
  by("question").value = "";
  if (!conversation.owed) await answered(text, said, signal);
  by("question").value ||= nextText(conversation.owed);
  if (conversation.owed) by("state").textContent = `Now write what ${conversation.owed.function.name} returns.`;
}

async function answered(text, said, signal) {
  const turn = addTurn("assistant", "The model said");
  const answer = { text: "", calls: [] };
  try {
    await show(turn, body(conversation.messages, by("speculation").checked), signal, answer);
    conversation.answer(answer.text, answer.cut ? [] : answer.calls);
  } catch (error) {
    if (error.name !== "AbortError" || !answer.seen) {
      conversation.unsay();
      by("question").value ||= text;
    } else conversation.answer(answer.text, []);
    if (answer.seen) turn.classList.add("cut");
    else for (const one of [said, turn]) one.remove();
    throw error;
  }
}

async function compareHere(signal) {
  const turns = [{ role: "user", content: asked() }];
  const cut = await compare((speculation) => body(turns, speculation), by("key").value, signal);
  const ended = cut ? "were cut at the limit of “Max tokens”" : "are complete";
  by("state").textContent = `Both answers ${ended}; they stand below.`;
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
    ...form(),
  };
}

// Streams an answer into `target` and its measurements into the page; `answer` is what has come so far.
async function show(target, request, signal, answer) {
  const meter = new Meter();
  const regions = new Regions(target);
  forgetTrees();
  for await (const piece of stream(request, by("key").value, signal)) {
    meter.add(piece);
    pinned(by("turns"), () => {
      for (const [text] of piece.spans) answer.text += text;
      answer.seen ||= Boolean(piece.reasoning || piece.calls.length || answer.text);
      join(answer.calls, piece.calls);
      regions.add(piece);
    });
    addTrees(piece.trees);
    showFigures(meter);
  }
  answer.cut = meter.cut;
  target.classList.toggle("cut", meter.cut);
  by("state").textContent = meter.cut
    ? `The answer was cut at ${counted(meter)}, the limit of “Max tokens”.`
    : `The answer is complete: ${counted(meter)}.`;
  const plan = await readPlan();
  by("plan").hidden = plan === null;
  by("plan").textContent = plan ?? "";
}

function counted({ tokens }) {
  return tokens === 1 ? "1 token" : `${tokens} tokens`;
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
  conversation = new Conversation();
  forgetExample();
  for (const turn of by("turns").querySelectorAll(".turn")) turn.remove();
  by("comparison").hidden = true;
  forgetTrees();
  showFigures({ tokens: "–", rate: null, acceptance: null, firstMilliseconds: null });
  showError(null);
  by("state").textContent = "";
  setBusy(false);
}

function setBusy(busy) {
  const { owed } = conversation;
  by("send").disabled = busy || loading;
  by("compare").disabled = busy || loading || Boolean(owed);
  by("asks-for").textContent = by("question").placeholder = owed ? `What ${owed.function.name} returns` : "Your message";
  for (const button of [by("clear"), ...by("examples").children]) button.disabled = busy;
  by("stop").disabled = !busy;
  by("turns").setAttribute("aria-busy", busy);
  if (busy) by("state").textContent = "Answering…";
}

function showError(error) {
  const refused = error?.status === 401;
  if (error) by("state").textContent = "";
  by("error").hidden = !error;
  by("error").textContent = error ? words(error) : "";
  by("key").setAttribute("aria-invalid", refused);
  if (refused) {
    by("key-field").hidden = false;
    by("key").focus();
  }
  if (error && !(error instanceof ApiError)) console.error(error);
}

function words(error) {
  if (!(error instanceof ApiError)) return "Something went wrong in this page.";
  if (error.status !== 401) return error.message;
  return by("key").value
    ? "The server refused this API key. Write another into the field “API key”."
    : "The server asks for an API key. Write it into the field “API key”.";
}
