// Elements of a page, for all pages. No framework, no HTML from data: text of models only ever becomes text nodes.

const $ = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// What turns the direction of the text after it, and what can't be seen: tags, joiners, controls.
const TURNS = /([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])/;
const UNSEEN = /^(?:(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}])+$/u;

const codes = (text) => [...text].filter((one) => UNSEEN.test(one)).map((one) => `U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(" ");

// Names the characters of an element that would steer the text around them, or that nobody would see.
function hide(made, text) {
  made.classList.add("hidden");
  made.classList.toggle("unseen", UNSEEN.test(text));
  made.dataset.codes = codes(text);
  return made;
}

// A text in which what turns directions is an element of its own, which turns nothing beside it.
const plain = (text) => text.split(TURNS).map((one, place) => (place % 2 ? hide(element("bdi", { textContent: one }), one) : one));
