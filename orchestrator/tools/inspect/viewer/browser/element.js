// Elements of a page. No framework and no HTML from data: model text becomes text nodes only.

const $ = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Characters that change the text direction, and invisible ones: tags, joiners, controls.
const TURNS = /([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])/;
const UNSEEN = /^(?:(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}])+$/u;

const codes = (text) => [...text].filter((one) => UNSEEN.test(one)).map((one) => `U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(" ");

// Shows direction marks and invisible characters of an element by their codes.
function hide(made, text) {
  made.classList.add("hidden");
  made.classList.toggle("unseen", UNSEEN.test(text));
  made.dataset.codes = codes(text);
  return made;
}

// A text whose direction marks are isolated in elements, so that they affect nothing else.
const plain = (text) => text.split(TURNS).map((one, place) => (place % 2 ? hide(element("bdi", { textContent: one }), one) : one));
