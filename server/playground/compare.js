// Asks one question with one seed, speculation on and then off, in sequence, so that neither slows the other down.

import { stream } from "./api.js";
import { addSpan, by } from "./dom.js";
import { Meter } from "./meter.js";

const SIDES = [["on", true], ["off", false]];

// `ask(enabled)` builds a request body. Shows at the end whether the texts are equal, and the times; resolves to
// whether a limit cut off either answer.
export async function compare(ask, key, signal) {
  by("comparison").hidden = false;
  for (const [side] of SIDES) {
    by(`${side}-text`).replaceChildren();
    for (const part of ["time", "detail"]) by(`${side}-${part}`).textContent = "";
    by(`${side}-bar`).style.inlineSize = "0";
  }
  by("verdict").textContent = "Asking twice…";
  try {
    // Both runs then find the prompt in the cache and the server warm.
    for await (const _ of stream({ ...ask(true), max_tokens: 1 }, key, signal));
    const [on, off] = [await run("on", ask(true), key, signal), await run("off", ask(false), key, signal)];
    const longest = Math.max(on.meter.seconds, off.meter.seconds);
    by("on-bar").style.inlineSize = `${(100 * on.meter.seconds) / longest}%`;
    by("off-bar").style.inlineSize = `${(100 * off.meter.seconds) / longest}%`;
    by("verdict").textContent = verdict(on, off);
    return on.meter.cut || off.meter.cut;
  } catch (error) {
    by("verdict").textContent = "Not both answers were finished, so nothing can be said of them.";
    throw error;
  }
}

async function run(side, request, key, signal) {
  const meter = new Meter();
  let text = "";
  for await (const piece of stream(request, key, signal)) {
    meter.add(piece);
    for (const [words, was] of piece.spans) {
      text += words;
      addSpan(by(`${side}-text`), words, was);
    }
    by(`${side}-time`).textContent = `${meter.seconds.toFixed(2)} s`;
  }
  const length = meter.acceptance?.toFixed(2) ?? "–";
  by(`${side}-detail`).textContent = `${meter.tokens} tokens${meter.cut ? ", cut there" : ""}, ${length} a step`;
  return { text, meter };
}

function verdict(on, off) {
  if (on.text !== off.text) {
    let same = 0;
    while (on.text[same] === off.text[same]) same++;
    return (
      `The texts differ from character ${same + 1} on. In 16-bit arithmetic rounding can do that; ` +
      "in fp32 it should not happen."
    );
  }
  const ratio = off.meter.seconds / on.meter.seconds;
  return `The same text, letter by letter; ${ratio.toFixed(2)} times as fast with speculation.`;
}
