// The page's elements, and answers as text nodes. Nothing here or elsewhere makes markup of text.

export const by = (id) => document.getElementById(id);

// Text of an answer, marked where it was drafted. Called once for each piece that arrives.
export function addSpan(target, text, drafted) {
  const span = document.createElement("span");
  span.textContent = text;
  if (drafted) span.className = "drafted";
  target.append(span);
}

// Runs `change` and keeps a list that was scrolled to its end at its end.
export function pinned(list, change) {
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  change();
  if (atEnd) list.scrollTop = list.scrollHeight;
}
