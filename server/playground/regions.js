// An answer's regions on the page: reasoning, which folds, text, and calls of tools.

import { addSpan } from "./dom.js";

export class Regions {
  #turn;
  #thought = null;
  #calls = new Map();

  constructor(turn) {
    this.#turn = turn;
  }

  add({ reasoning, spans, calls }) {
    if (reasoning) this.#addReasoning(reasoning);
    for (const [text, drafted] of spans) addSpan(this.#turn, text, drafted);
    for (const call of calls) this.#addCall(call);
  }

  #addReasoning(text) {
    if (!this.#thought) {
      const folded = this.#append("details", "reasoning");
      folded.append(element("summary", "", "Reasoning"));
      this.#thought = element("div", "", "");
      folded.append(this.#thought);
    }
    this.#thought.append(text);
  }

  #addCall({ index, function: made }) {
    if (!this.#calls.has(index)) {
      const call = this.#append("div", "call");
      call.append(element("b", "", made.name ?? ""));
      this.#calls.set(index, element("code", "", ""));
      call.append(this.#calls.get(index));
    }
    this.#calls.get(index).append(made.arguments ?? "");
  }

  #append(kind, name) {
    const added = element(kind, name, "");
    this.#turn.append(added);
    return added;
  }
}

function element(kind, name, text) {
  const made = document.createElement(kind);
  made.className = name;
  made.textContent = text;
  return made;
}
