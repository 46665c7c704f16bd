// The page's client of the server: its model, and answers as a stream of pieces. Text is data here, never markup.

export class ApiError extends Error {}

export async function findModel(key) {
  const answer = await get("v1/models", key);
  return answer.data[0].id;
}

// Throws ApiError while the server accepts no requests: it is loading, draining, or its engine is dead.
export async function checkReady(key) {
  await send("ready", key, {}).catch((error) => {
    if (error.status === 503 || !error.status) throw error;
  });
}

// Yields {spans, reasoning, calls, trees, drafted, finish, usage} as chunks arrive; `spans` is [[text, drafted], ...],
// `calls` are pieces of tool calls, `drafted` says for each token whether it was drafted, `finish` why the answer ended.
// Throws ApiError with a readable message.
export async function* stream(body, key, signal) {
  const request = {
    ...body,
    stream: true,
    stream_options: { include_usage: true },
    return_token_ids: true,
    speculation: { ...body.speculation, spans: true, trees: true },
  };
  const response = await send("v1/chat/completions", key, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(request),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message);
    const choice = chunk.choices[0];
    yield {
      spans: spansOf(choice),
      reasoning: choice?.delta?.reasoning ?? "",
      calls: choice?.delta?.tool_calls ?? [],
      trees: choice?.trees ?? [],
      drafted: choice?.drafted ?? [],
      finish: choice?.finish_reason ?? null,
      usage: chunk.usage ?? null,
    };
  }
  throw new ApiError("The answer was cut off: the connection to the server was lost.");
}

// The server's spans are of the text as the model wrote it. They are those of the content where they say the same.
function spansOf(choice) {
  const spans = choice?.spans ?? [];
  if (!choice?.delta) return spans;
  const text = choice.delta.content ?? "";
  if (spans.map(([piece]) => piece).join("") === text) return spans;
  return text ? [[text, false]] : [];
}

async function get(path, key) {
  return (await send(path, key, {})).json();
}

async function send(path, key, options) {
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const error = new ApiError(told?.error?.message ?? `The server answered ${response.status}.`);
  error.status = response.status;
  error.code = told?.error?.code ?? null;
  throw error;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (kept + value).split("\n");
      kept = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The answer was cut off: the connection to the server was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
