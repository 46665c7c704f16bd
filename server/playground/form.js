// What the user asks of the answer's form: a JSON schema that it must match, and tools that it may call.

import { ApiError } from "./api.js";
import { by } from "./dom.js";

// The fields for a request. Throws ApiError about a text that is not JSON.
export function form() {
  const schema = read("schema", "JSON schema");
  const tools = read("tools", "Tools");
  return {
    ...(schema && { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } }),
    ...(tools && { tools: (Array.isArray(tools) ? tools : [tools]).map(wrapped) }),
  };
}

// A function may be written without the object around it.
function wrapped(tool) {
  return tool?.type === "function" ? tool : { type: "function", function: tool };
}

function read(id, name) {
  const text = by(id).value.trim();
  by(id).setAttribute("aria-invalid", false);
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    by(id).setAttribute("aria-invalid", true);
    throw new ApiError(`The field “${name}” is not JSON: ${error.message}`);
  }
}
