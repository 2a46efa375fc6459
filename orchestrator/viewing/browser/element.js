// Elements of a page, for all pages. No framework, no HTML from data: text of models only ever becomes text nodes.

const $ = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
