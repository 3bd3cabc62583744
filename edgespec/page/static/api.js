/** Requests to the server, with its key if it wants one. */

const KEY = "edgespec.key";

export class ApiError extends Error {
  constructor({ message, code = "", hint = "" }, status = 0) {
    super(message);
    Object.assign(this, { code, hint, status });
  }
}

/** The server does not answer, or an answer broke off. */
export class Unreachable extends Error {}

/** What the page does when a key is needed, and when the server cannot be reached; `main.js` sets both. */
export const hooks = { askForKey: async () => null, unreachable: () => {} };

let key = stored(sessionStorage) ?? stored(localStorage);

function stored(storage) {
  try {
    return storage.getItem(KEY);
  } catch {
    return null;
  }
}

export function useKey(text, remember) {
  key = text;
  try {
    sessionStorage.setItem(KEY, text);
    if (remember) localStorage.setItem(KEY, text);
    else localStorage.removeItem(KEY);
  } catch {
    // without storage the key lasts as long as the page
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    hooks.unreachable();
    throw new Unreachable("The server cannot be reached.");
  }
  if (response.ok) return response;
  const error = new ApiError(await told(response), response.status);
  const needsKey = error.status === 401 || error.code === "other_user";
  if (needsKey && !options.quiet && (await hooks.askForKey(error, Boolean(key)))) return send(path, options);
  throw error;
}

async function told(response) {
  try {
    return (await response.json()).error;
  } catch {
    return { message: `The server answered with status ${response.status}.` };
  }
}

const withQuery = (path, query) => (query ? `${path}?${new URLSearchParams(query)}` : path);

const posted = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

export async function get(path, query, options) {
  return (await send(withQuery(path, query), options)).json();
}

export async function getBlob(path, query) {
  return (await send(withQuery(path, query))).blob();
}

export async function post(path, body, options) {
  return (await send(path, { ...posted(body), ...options })).json();
}

/** The events of an answer, from the server's stream. Leaving the loop, or `signal`, stops the answer. */
export async function* events(path, body, signal) {
  const response = await send(path, { ...posted(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await read(reader);
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (!part.startsWith("data:")) continue;
        const event = JSON.parse(part.slice(5));
        yield event;
        if (event.type === "end" || event.type === "error") return;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  hooks.unreachable();
  throw new Unreachable("The connection to the server was lost.");
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    hooks.unreachable();
    throw new Unreachable("The connection to the server was lost.");
  }
}
