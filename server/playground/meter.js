// Measures the speed of an answer from its stream, while it arrives and when it has ended.

export class Meter {
  #began = performance.now();
  #first = null;
  #last = this.#began;
  #bonus = 0;
  #usage = null;
  #finish = null;
  tokens = 0;

  // `drafted` says for each new token whether it was drafted; each step adds one token that was not.
  add({ drafted, finish, usage }) {
    this.#last = performance.now();
    if (drafted.length) this.#first ??= this.#last;
    this.tokens += drafted.length;
    this.#bonus += drafted.filter((was) => !was).length;
    this.#usage = usage ?? this.#usage;
    this.#finish = finish ?? this.#finish;
  }

  // Whether a limit ended the answer before the model did.
  get cut() {
    return this.#finish === "length";
  }

  get seconds() {
    return (this.#last - this.#began) / 1000;
  }

  get firstMilliseconds() {
    return this.#first === null ? null : this.#first - this.#began;
  }

  // Tokens per second after the first token.
  get rate() {
    const seconds = (this.#last - this.#first) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : null;
  }

  // Tokens per step. The first token comes from the prefill, not from a step; the server's final count is exact.
  get acceptance() {
    const told = this.#usage?.speculation?.acceptance_length;
    return told ?? (this.#bonus > 1 ? (this.tokens - 1) / (this.#bonus - 1) : null);
  }
}
