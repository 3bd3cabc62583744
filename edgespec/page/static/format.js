/** Numbers, sizes and times as people read them. */

const plain = new Intl.NumberFormat("en");

export const count = (n) => plain.format(n);

export function plural(n, word) {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; n >= 1000 && unit < units.length - 1; unit++) n /= 1000;
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

export function speed(tokensPerSecond) {
  return `${tokensPerSecond >= 20 ? Math.round(tokensPerSecond) : tokensPerSecond.toFixed(1)} tok/s`;
}

export function seconds(s) {
  if (s < 1) return "less than a second";
  if (s < 60) return `${s < 10 ? s.toFixed(1).replace(".0", "") : Math.round(s)} s`;
  return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

export function moment(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

/** The heading in the list of chats under which a time belongs. */
export function period(unixSeconds, now = new Date()) {
  const date = new Date(unixSeconds * 1000);
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  const days = (midnight - date) / 86_400_000;
  if (days <= 0) return "Today";
  if (days <= 1) return "Yesterday";
  if (days <= 7) return "Previous 7 days";
  if (days <= 30) return "Previous 30 days";
  return date.toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

// Messages may begin with a name, which stays as it is.
const BEGINS = /^(?:an?|another|answers?|it|no|nothing|only|that|the|there|these|this|your?)\b/;

/** Messages of the server as sentences. */
export function sentences(...texts) {
  return texts
    .filter(Boolean)
    .map((text) => (BEGINS.test(text) ? text[0].toUpperCase() + text.slice(1) : text))
    .map((text) => (/[.!?…:]$/.test(text) ? text : `${text}.`))
    .join(" ");
}
