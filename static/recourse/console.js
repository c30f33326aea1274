// Makes the console smooth: keys, dialogs, live parts, relative times. Everything works without it.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("js");

  const find = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const say = (text) => { const region = find("#announcements"); if (region) region.textContent = text; };

  // Theme: the server reads the cookie, so that the page never flashes in the other one.
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const toggleTheme = () => {
    root.dataset.theme = dark() ? "light" : "dark";
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax${secure}`;
    say(`${root.dataset.theme} theme`);
  };

  // Times: the same words as the server's `ago` and `duration`, by the server's clock; this machine's may be wrong.
  const skew = document.body.dataset.now ? Date.now() - Date.parse(document.body.dataset.now) : 0;
  const secondsSince = (moment) => (Date.now() - skew - Date.parse(moment)) / 1000;
  const largest = (seconds) => {
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([limit]) => seconds >= limit);
    return `${Math.floor(seconds / size)} ${unit}`;
  };
  const ago = (seconds) => seconds <= -1 ? `in ${largest(-seconds)}` : seconds < 5 ? "just now" : `${largest(seconds)} ago`;
  const duration = (seconds) => {
    const [d, h, m, s] = [seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60].map(Math.floor);
    const two = (number) => String(number).padStart(2, "0");
    return d ? `${d}d ${h}h` : h ? `${h}h ${two(m)}m` : m ? `${m}m ${two(s)}s` : `${Math.max(s, 0)}s`;
  };
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const refreshTimes = () => {
    for (const time of all("time[data-ago]")) write(time, ago(secondsSince(time.dateTime)));
    for (const span of all("[data-since]")) write(span, duration(secondsSince(span.dataset.since)));
  };
  setInterval(() => { if (!document.hidden) refreshTimes(); }, 5000);

  // Rows: j and k move, Enter opens the row's first link.
  const rows = () => all("[data-rows] > :is(tr:not(.detail), li)");
  const move = (step) => {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((row) => row.classList.contains("current"));
    const next = list[Math.min(Math.max(at + step, 0), list.length - 1)];
    if (at >= 0) list[at].classList.remove("current");
    next.classList.add("current");
    next.scrollIntoView({ block: "nearest" });
    find("a[href]", next)?.focus({ preventScroll: true });
  };
  const open = () => find("a[href]", find("[data-rows] > .current") ?? document.createElement("p"))?.click();

  // Live parts: paused by `.`, silent in hidden tabs.
  let live = true;
  const toggleLive = () => {
    live = !live;
    for (const mark of all(".live")) mark.classList.toggle("off", !live);
    say(live ? "live updates on" : "live updates paused");
  };
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!event.target.matches("[data-live]")) return;
    // a text that somebody marks to copy is not taken from under their hand
    const marked = getSelection();
    const marking = !marked.isCollapsed && event.target.contains(marked.anchorNode);
    if (!live || marking || document.hidden || find("dialog[open]")) event.preventDefault();
  });

  // Dialogs: a link that opens a page opens it as a dialog where there is JavaScript.
  const dialog = find("#dialog");
  let current = "";
  let unfolded = [];
  document.addEventListener("htmx:beforeSwap", () => {
    current = find("[data-rows] > .current a[href]")?.id ?? "";
    unfolded = all("details[open] > summary[id]").map((summary) => summary.id);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    for (const id of unfolded) document.getElementById(id)?.parentElement.setAttribute("open", "");
    if (current) document.getElementById(current)?.closest("tr, li").classList.add("current");
    if (event.target === dialog && !dialog.open) dialog.showModal();
    refreshTimes();
    for (const mark of all(".live")) mark.classList.toggle("off", !live);
  });
  dialog?.addEventListener("close", () => dialog.replaceChildren());

  const showKeys = () => {
    const list = find("#keys dl");
    list.replaceChildren();
    const known = new Map([["?", "this help"], ["t", "light or dark"]]);
    if (rows().length) known.set("j k", "next and previous row").set("Enter", "open the row");
    if (find("[data-live]")) known.set(".", "pause or resume live updates");
    for (const element of all("[data-key]")) known.set(element.dataset.key, element.dataset.keyLabel ?? element.textContent.trim());
    for (const [key, label] of known) {
      const term = document.createElement("dt");
      for (const part of key.split(" ")) {
        const cap = document.createElement("kbd");
        cap.textContent = part;
        term.append(cap, " ");
      }
      const description = document.createElement("dd");
      description.textContent = label;
      list.append(term, description);
    }
    find("#keys").showModal();
  };

  // A row that was opened once is only hidden and shown again; what it holds has ended and does not change.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const row = event.target.dataset.toggles && document.getElementById(event.target.dataset.toggles);
    if (row && row.childElementCount) { event.preventDefault(); row.hidden = !row.hidden; }
  });

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-close], [data-theme-toggle], [data-live-toggle], [data-copy], [data-help]");
    if (!target) return;
    if ("close" in target.dataset) {
      const around = target.closest("dialog");
      if (around) { event.preventDefault(); around.close(); }
    } else if ("themeToggle" in target.dataset) {
      event.preventDefault();
      toggleTheme();
    } else if ("liveToggle" in target.dataset) {
      toggleLive();
    } else if ("help" in target.dataset) {
      event.preventDefault();
      showKeys();
    } else if (navigator.clipboard) {
      navigator.clipboard.writeText(target.dataset.copy).then(() => say("copied"));
    }
  });

  // Days of a calendar: arrows move the focus by a day, or by a week.
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 }[event.key];
    if (!step || !event.target.matches("[data-days] button")) return;
    const days = all("[data-days] button");
    const next = days[days.indexOf(event.target) + step];
    if (next) { event.preventDefault(); next.focus(); }
  });

  // Keys: single ones, and two in a row for going somewhere. No key does anything that has consequences.
  let first = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest("input, textarea, select") || find("dialog[open]")) return;
    const pressed = first ? `${first} ${event.key}` : event.key;
    first = "";
    const element = all("[data-key]").find((candidate) => candidate.dataset.key === pressed);
    if (element) {
      event.preventDefault();
      if (element.matches("input")) { element.focus(); element.select(); } else element.click();
    } else if (event.key === "g") first = "g";
    else if (pressed === "?") showKeys();
    else if (pressed === "t") toggleTheme();
    else if (pressed === ".") toggleLive();
    else if (pressed === "j") move(1);
    else if (pressed === "k") move(-1);
    else if (pressed === "Enter" && event.target === document.body) open();
  });
})();
