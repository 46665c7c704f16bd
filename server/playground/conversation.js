// What was said, as the server is sent it. A call of a tool is followed by what it returned, in the order of the calls.

export class Conversation {
  messages = [];

  // The first call of the last answer whose result is not there yet, or null.
  get owed() {
    const last = this.messages.findLastIndex(({ role }) => role === "assistant");
    const results = this.messages.length - 1 - last;
    return this.messages[last]?.tool_calls?.[results] ?? null;
  }

  // The text is the result of the call that is owed one, or else the user's message.
  say(text) {
    const call = this.owed;
    this.messages.push(call ? { role: "tool", tool_call_id: call.id, content: text } : { role: "user", content: text });
  }

  unsay() {
    this.messages.pop();
  }

  answer(text, calls) {
    this.messages.push({ role: "assistant", content: text, ...(calls.length && { tool_calls: calls }) });
  }
}

// Adds pieces of calls, as a stream brings them, to the calls so far.
export function join(calls, pieces) {
  for (const { index, id, function: made } of pieces) {
    calls[index] ??= { id, type: "function", function: { name: made.name, arguments: "" } };
    calls[index].function.arguments += made.arguments ?? "";
  }
}
