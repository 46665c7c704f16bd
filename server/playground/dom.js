// The page's elements, and answers as text nodes. No code of the page turns text into markup.

export const by = (id) => document.getElementById(id);

// Appends a piece of an answer's text, marked if it was drafted. Called once per piece.
export function addSpan(target, text, drafted) {
  const span = document.createElement("span");
  span.textContent = text;
  if (drafted) span.className = "drafted";
  target.append(span);
}

// Runs `change`; a list that was scrolled to its end stays at its end.
export function pinned(list, change) {
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  change();
  if (atEnd) list.scrollTop = list.scrollHeight;
}
