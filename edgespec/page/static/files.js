/** Files of messages: read by the server, shown as thumbnails and chips. */

import { getBlob, post } from "./api.js";
import { el, iconButton } from "./dom.js";
import { bytes, count } from "./format.js";
import { dialog } from "./dialogs.js";
import { icon } from "./icons.js";
import { told } from "./toasts.js";

const MOST_BYTES = 64_000_000;
const images = new Map(); // URLs by digest

/** The files of a message that is being written. */
export class Attachments {
  constructor(place, onchange) {
    Object.assign(this, { place, onchange });
    this.all = [];
  }

  get isReading() {
    return this.all.some((each) => !each.file);
  }

  /** Have the server read files. */
  async add(files) {
    await Promise.all([...files].map((file) => this.read(file)));
  }

  async read(file) {
    const entry = { file: null };
    const remove = () => {
      this.all = this.all.filter((each) => each !== entry);
      entry.element.remove();
      this.onchange();
    };
    entry.element = chip(file.name, "is being read…", "file", remove);
    this.all.push(entry);
    this.place.append(entry.element);
    this.onchange();
    try {
      if (file.size > MOST_BYTES) throw new Error(`${file.name} is larger than ${bytes(MOST_BYTES)}.`);
      const read = await post("/page/files", { name: file.name, data: await base64(file) });
      entry.file =
        read.kind === "image"
          ? { name: read.name, image: read.image }
          : { name: read.name, about: read.about, text: read.text };
      const shown =
        read.kind === "image"
          ? thumbnail(read, URL.createObjectURL(file), remove)
          : chip(read.name, about(read), "file", remove);
      entry.element.replaceWith(shown);
      entry.element = shown;
    } catch (error) {
      remove();
      told(error);
    }
    this.onchange();
  }

  /** Take the files out, for a message. */
  take() {
    const taken = this.all;
    this.all = [];
    this.place.replaceChildren();
    this.onchange();
    return taken;
  }

  /** Put files back that could not be sent. */
  put(entries) {
    this.all.push(...entries);
    this.place.append(...entries.map((each) => each.element));
    this.onchange();
  }
}

function about(read) {
  return [bytes(read.bytes), read.tokens && `${count(read.tokens)} tokens`, read.about].filter(Boolean).join(" · ");
}

function chip(name, about, iconName, remove) {
  return el(
    "div",
    { class: "chip" },
    icon(iconName),
    el(
      "span",
      { class: "grow" },
      el("span", { class: "chip-name", dir: "auto", text: name, title: name }),
      el("span", { class: "quiet", text: about }),
    ),
    remove && iconButton("close", `Remove ${name}`, remove),
  );
}

function thumbnail(file, url, remove) {
  const picture = el("img", { class: "thumbnail", alt: file.name, title: file.name, src: url });
  return el(
    "div",
    { class: "picture" },
    el(
      "button",
      {
        type: "button",
        class: "plain",
        "aria-label": `Show ${file.name}`,
        onclick: () => enlarge(file.name, picture.src),
      },
      picture,
    ),
    remove && iconButton("close", `Remove ${file.name}`, remove),
  );
}

function enlarge(name, url) {
  dialog(name, () => el("img", { class: "full", alt: name, src: url }), { name: "wide" });
}

/** A file of a message that was sent. */
export function attachmentView(file) {
  if (file.kind !== "image" || !file.image)
    return chip(file.name, [bytes(file.bytes), file.about].filter(Boolean).join(" · "), "file");
  const view = thumbnail(file, images.get(file.image) ?? null);
  if (!images.has(file.image)) fetchImage(file, view);
  return view;
}

async function fetchImage(file, view) {
  try {
    const url = URL.createObjectURL(await getBlob("/page/image", { name: file.image }));
    images.set(file.image, url);
    view.querySelector("img").src = url;
  } catch {
    view.replaceWith(chip(file.name, "the image is not here any more", "image"));
  }
}

async function base64(file) {
  const { result } = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
  return result.slice(result.indexOf(",") + 1);
}
