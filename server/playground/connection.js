// Whether the server accepts requests. Checks again until it is ready while it is loading or cannot be reached.

import { checkReady, findModel } from "./api.js";

const PAUSE = 1000;

export class Connection {
  #show;
  #latest = 0;
  #timer = null;

  // `show({ model, error })` is called after each check; without an error the server is ready.
  constructor(show) {
    this.#show = show;
  }

  // Resolves to the result. Only the latest check is shown.
  async look(key) {
    clearTimeout(this.#timer);
    const own = ++this.#latest;
    let model = null;
    let error = null;
    try {
      model = await findModel(key);
      await checkReady(key);
    } catch (caught) {
      error = caught;
    }
    if (own === this.#latest) {
      this.#show({ model, error });
      if (error && error.status !== 401) this.#timer = setTimeout(() => this.look(key), PAUSE);
    }
    return { model, error };
  }
}
