// Rows that somebody selects in a list: kept in this tab over pages, refreshes and live updates, sent in one field.
// Without it the boxes of the page that is shown are sent.
"use strict";

(() => {
  const BOXES = 'input[type="checkbox"][name="ids"]';
  const form = () => document.getElementById("selection");
  const boxes = () => [...document.querySelectorAll(BOXES)];
  const place = () => `selection of ${form()?.dataset.selection} in ${document.querySelector("[data-workspace]")?.dataset.workspace ?? location.host}`;
  const read = () => new Set(JSON.parse(sessionStorage.getItem(place()) ?? "[]"));
  const write = (ids) => {
    if (ids.size) sessionStorage.setItem(place(), JSON.stringify([...ids]));
    else sessionStorage.removeItem(place());
  };

  const show = () => {
    const bar = form();
    if (!bar) return;
    const ids = read();
    const here = boxes();
    for (const box of here) {
      box.checked = ids.has(box.value);
      if (box.checked) box.closest("tr").setAttribute("aria-selected", "true");
      else box.closest("tr").removeAttribute("aria-selected");
    }
    const chosen = here.filter((box) => box.checked).length;
    const all = bar.elements.all.checked;
    const whole = document.querySelector("[data-pick-all]");
    if (whole) {
      whole.checked = chosen > 0 && chosen === here.length;
      whole.indeterminate = chosen > 0 && chosen < here.length;
    }
    bar.classList.toggle("some", ids.size > 0 || all || (whole?.checked ?? false));
    const beside = ids.size === chosen ? "" : `, ${chosen} of them on this page`;
    const said = all ? "Not the rows that are ticked, but" : `${ids.size.toLocaleString("en")} selected${beside}`;
    const words = bar.querySelector("[data-chosen]");
    if (words.textContent !== said) words.textContent = said;
    for (const button of bar.querySelectorAll('button[name="kind"]')) button.disabled = !all && !ids.size;
  };

  const change = (box, ids) => { if (box.checked) ids.add(box.value); else ids.delete(box.value); };
  document.addEventListener("change", (event) => {
    const target = event.target;
    if (target.matches(BOXES)) {
      const ids = read();
      change(target, ids);
      write(ids);
    } else if (target.matches("[data-pick-all]")) {
      const ids = read();
      for (const box of boxes()) { box.checked = target.checked; change(box, ids); }
      write(ids);
    } else if (!target.matches('#selection [name="all"]')) return;
    show();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-clear]")) return;
    write(new Set());
    form().elements.all.checked = false;
    show();
  });
  document.addEventListener("submit", (event) => {
    if (event.target.id === "selection") event.target.elements.selected.value = [...read()].join(" ");
  });
  // a text that somebody marks in a row to copy it is not taken from under their hand
  document.addEventListener("htmx:beforeRequest", (event) => {
    const marked = getSelection();
    const list = event.target.matches("[data-live]") && event.target.closest("section");
    if (list && !marked.isCollapsed && list.contains(marked.anchorNode)) event.preventDefault();
  });
  // a row that changes in its place, a page that is gone back to
  for (const name of ["htmx:afterSwap", "htmx:oobAfterSwap"]) document.addEventListener(name, show);
  addEventListener("pageshow", show);

  // the draft holds what was selected: it is selected no more
  const taken = document.querySelector("[data-selection-taken]");
  if (taken) for (const key of Object.keys(sessionStorage)) if (key.startsWith(`selection of ${taken.dataset.selectionTaken} `)) sessionStorage.removeItem(key);
  show();
})();
