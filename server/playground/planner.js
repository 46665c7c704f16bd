// What the server drafts at the moment, and what that promises, from its metrics; only with `spec.planner: goodput`.

// Resolves to a sentence, or to null if the server does not plan or does not say.
export async function readPlan() {
  try {
    const response = await fetch("metrics");
    return response.ok ? planned(await response.text()) : null;
  } catch {
    return null;
  }
}

function planned(metrics) {
  const depth = value(metrics, "aerie:spec_decode_draft_depth");
  if (depth === null) return null;
  const gain = value(metrics, "aerie:spec_decode_predicted_gain");
  const reason = /^aerie:spec_decode_choice_info\{.*reason="([^"]*)"/m.exec(metrics)?.[1];
  const shape = depth ? `Drafts ${depth} ahead now` : "Drafts nothing now";
  const why = reason ? `: ${reason}` : "";
  return gain ? `${shape}${why} (${gain.toFixed(2)} times plain steps).` : `${shape}${why}.`;
}

function value(metrics, name) {
  const line = metrics.split("\n").find((one) => one.startsWith(`${name}{`) || one.startsWith(`${name} `));
  return line === undefined ? null : Number(line.slice(line.lastIndexOf(" ") + 1));
}
