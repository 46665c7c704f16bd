// Conversations to try, on chips. A chip writes the first message and the form of the answer into the page; after every
// answer the next message, or what a called tool returns, stands ready to be sent.

import { by } from "./dom.js";

let says = [];
let returns = [];

// Makes a chip of each of the server's examples. `clear` empties the page before one begins.
export async function showExamples(clear) {
  const answer = await fetch("playground/examples.json").catch(() => null);
  if (!answer?.ok) return; // the page itself says where the server is gone
  for (const example of await answer.json()) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.textContent = example.name;
    chip.addEventListener("click", () => {
      clear();
      begin(example);
    });
    by("examples").append(chip);
  }
}

// The example's next text, empty at its end; `owed` is the call whose result is asked for, if there is one.
export function nextText(owed) {
  return (owed ? returns : says).shift() ?? "";
}

export function forgetExample() {
  says = [];
  returns = [];
}

function begin(example) {
  says = [...example.says];
  returns = [...(example.returns ?? [])];
  for (const id of ["schema", "tools"]) by(id).value = example[id] ? JSON.stringify(example[id], null, 1) : "";
  by("form").open = Boolean(example.schema ?? example.tools);
  if (example.max_tokens) by("max-tokens").value = example.max_tokens;
  by("question").value = nextText(null);
  by("question").focus();
}
