/** HTML as elements that cannot run anything, by DOMPurify. All HTML of the page comes through here. */

import "./vendor/purify.min.js";

// Other classes could imitate parts of the page.
const CLASSES = /^(?:(?:md-[a-z-]+|hljs-[\w-]+|language-[\w+#.-]+|\w+_)(?: |$))+$/;

const purify = window.DOMPurify;
purify.addHook("uponSanitizeAttribute", (_element, attribute) => {
  if (attribute.attrName === "class" && !CLASSES.test(attribute.attrValue)) attribute.keepAttr = false;
});

/** A fragment with these tags and attributes only; links lead to web pages and mail addresses. */
export function cleaned(html, tags, attributes) {
  return purify.sanitize(html, {
    ALLOWED_TAGS: tags,
    ALLOWED_ATTR: attributes,
    ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
    ADD_URI_SAFE_ATTR: attributes.filter((name) => name !== "href"),
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
}

export function escaped(text) {
  return text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);
}
