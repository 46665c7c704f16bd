// What an answer's stream says about its speed, while it arrives and when it is over.

export class Meter {
  #began = performance.now();
  #first = null;
  #last = this.#began;
  #bonus = 0;
  #usage = null;
  #finish = null;
  tokens = 0;

  // `drafted` tells of each new token whether it was drafted; a step adds one token that was not.
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

  // Tokens a second after the first one.
  get rate() {
    const seconds = (this.#last - this.#first) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : null;
  }

  // Tokens a step. The first token is the prompt's and no step's; the server's own count comes last and is exact.
  get acceptance() {
    const told = this.#usage?.speculation?.acceptance_length;
    return told ?? (this.#bonus > 1 ? (this.tokens - 1) / (this.#bonus - 1) : null);
  }
}
