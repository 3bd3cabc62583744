/** What this browser keeps: unsent texts and choices about the page. Without storage, nothing is kept. */

const PREFIX = "edgespec.";

export function kept(name) {
  try {
    return localStorage.getItem(PREFIX + name) ?? "";
  } catch {
    return "";
  }
}

export function keep(name, text) {
  try {
    if (text) localStorage.setItem(PREFIX + name, text);
    else localStorage.removeItem(PREFIX + name);
  } catch {
    // a full or forbidden storage: the page works without it
  }
}
