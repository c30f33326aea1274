// Makes the console smooth: keys, dialogs, live parts, relative times. Everything works without it.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("js");

  const find = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const say = (text) => { const region = find("#announcements"); if (region) region.textContent = text; };

  // Theme and density: the server reads the cookies, so that the page never flashes in the other one. The buttons say
  // what a press makes of it, as without JavaScript.
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const keep = (name, value) => {
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = `${name}=${value}; path=/; max-age=31536000; samesite=lax${secure}`;
  };
  const nameLooks = () => {
    for (const button of all("[data-theme-toggle]")) button.textContent = dark() ? "Light theme" : "Dark theme";
    for (const button of all("[data-density-toggle]")) button.textContent = root.dataset.density ? "Dense rows" : "Comfortable rows";
  };
  const toggleTheme = () => {
    root.dataset.theme = dark() ? "light" : "dark";
    keep("theme", root.dataset.theme);
    nameLooks();
    say(`${root.dataset.theme} theme`);
  };
  const toggleDensity = () => {
    if (root.dataset.density) delete root.dataset.density; else root.dataset.density = "comfortable";
    keep("density", root.dataset.density ?? "dense");
    nameLooks();
    say(`${root.dataset.density ?? "dense"} rows`);
  };
  nameLooks();

  // Menus of the top bar: closed by Escape, and by going on elsewhere.
  const closeMenus = (except) => {
    for (const menu of all("details[data-menu][open]")) if (menu !== except) menu.open = false;
  };
  document.addEventListener("pointerdown", (event) => closeMenus(event.target.closest("details[data-menu]")));
  document.addEventListener("focusin", (event) => closeMenus(event.target.closest("details[data-menu]")));
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && find("details[data-menu][open]");
    if (menu) { menu.open = false; find("summary", menu).focus(); }
  });

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
    drawTime();
  };
  // The time line of a run: each row has the frame of its axis, and what goes on is drawn until now.
  const drawTime = () => {
    const axis = find("[data-span]");
    if (!axis) return;
    for (const row of all("svg.time")) row.setAttribute("viewBox", `0 0 ${axis.dataset.span} 28`);
    if (!("liveAxis" in axis.dataset)) return;
    const at = secondsSince(axis.dataset.start);
    for (const line of all("[data-now]")) for (const end of ["x1", "x2"]) line.setAttribute(end, at);
    for (const bar of all("[data-grows]")) bar.setAttribute("width", Math.max(at - bar.getAttribute("x"), 0));
  };
  setInterval(() => { if (!document.hidden) refreshTimes(); }, 5000);

  // Rows: j and k move, Enter opens the row's first link, x selects it, r recovers what stands in it.
  const rows = () => all("[data-rows] > :is(tr:not(.detail), li)");
  const currentRow = () => find("[data-rows] > .current");
  const goTo = (row) => {
    currentRow()?.classList.remove("current");
    row.classList.add("current");
    row.scrollIntoView({ block: "nearest" });
    find("a[href]", row)?.focus({ preventScroll: true });
  };
  const move = (step) => {
    const list = rows();
    const at = list.indexOf(currentRow());
    if (list.length) goTo(list[Math.min(Math.max(at + step, 0), list.length - 1)]);
  };
  const inRow = (selector) => currentRow() && find(selector, currentRow());
  const open = () => inRow("a[href]")?.click();
  const SELECTS = 'input[type="checkbox"][name="ids"]';
  const RECOVERS = ["reconcile", "retry", "redrive", "rerun", "resume"].map((verb) => `a[id^="${verb}-"]`).join(", ");
  const recovery = () => inRow(RECOVERS) ?? find(`#main :is(${RECOVERS})`);

  // After an act out of a row the focus is on the row after it, once the same list is shown again.
  const AFTER = "row after the act";
  const rowAfter = (link) => {
    const row = link.closest("[data-rows] > *");
    const list = rows();
    const beside = row && (list[list.indexOf(row) + 1] ?? list[list.indexOf(row) - 1]);
    return beside && find("a[id]", beside)?.id;
  };
  const kept = JSON.parse(sessionStorage.getItem(AFTER) ?? "null");
  if (kept?.path === location.pathname) {
    sessionStorage.removeItem(AFTER);
    const row = document.getElementById(kept.id)?.closest("[data-rows] > *");
    if (kept.done && row) goTo(row);
  }

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
    const part = document.getElementById(event.target.dataset.live) ?? event.target;
    const marking = !marked.isCollapsed && part.contains(marked.anchorNode);
    if (!live || marking || document.hidden || find("dialog[open]")) event.preventDefault();
  });

  // What a live part says of itself is told to who listens when it says something new.
  const SAYS = "[data-says]";
  const saying = (part) => [part, ...all(SAYS, part)].map((one) => one.dataset.says).filter(Boolean).join("; ");
  let said = "";

  // Dialogs: a link that opens a page opens it as a dialog where there is JavaScript.
  const dialog = find("#dialog");
  let current = "";
  let unfolded = [];
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[hx-target="#dialog"]');
    const id = link && rowAfter(link);
    if (id) sessionStorage.setItem(AFTER, JSON.stringify({ path: location.pathname, id }));
    else if (link) sessionStorage.removeItem(AFTER);
  });
  // Focus goes to the first question, or to what is wrong; to the title when another plan comes back, and where one would
  // have to scroll to the question. What is to be read before stays in view, and Enter on a choice confirms nothing.
  const showDialog = () => {
    const isNew = !dialog.open;
    if (isNew) dialog.showModal();
    const wrong = find('[aria-invalid="true"]', dialog);
    const asked = all("input:not([type=hidden]), select, textarea", dialog).find((field) => field.checkVisibility());
    if (!wrong) dialog.scrollTop = 0;
    const footer = find("footer", dialog);
    const edges = (part) => part.getBoundingClientRect();
    const isSeen = asked && (!footer || footer.contains(asked) || edges(asked).bottom <= edges(footer).top);
    (wrong ?? ((isNew && isSeen && asked) || find("#act-title", dialog)))?.focus({ preventScroll: !wrong });
  };
  dialog?.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("[type=radio], [type=checkbox]")) event.preventDefault();
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    const after = JSON.parse(sessionStorage.getItem(AFTER) ?? "null");
    if (after && event.target.matches("#dialog form")) sessionStorage.setItem(AFTER, JSON.stringify({ ...after, done: true }));
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    said = saying(event.target);
    current = inRow("a[href]")?.id ?? "";
    unfolded = all("details[open] > summary[id]").map((summary) => summary.id);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    for (const id of unfolded) document.getElementById(id)?.parentElement.setAttribute("open", "");
    if (current) document.getElementById(current)?.closest("tr, li").classList.add("current");
    if (event.target === dialog) showDialog();
    if (event.detail.elt?.matches?.("[data-live]") && saying(event.detail.elt) !== said) say(saying(event.detail.elt));
    refreshTimes();
    for (const mark of all(".live")) mark.classList.toggle("off", !live);
  });
  dialog?.addEventListener("close", () => { dialog.replaceChildren(); sessionStorage.removeItem(AFTER); });

  const showKeys = () => {
    const list = find("#keys dl");
    list.replaceChildren();
    const known = new Map([["?", "this help"], ["t", "light or dark"]]);
    if (rows().length) known.set("j k", "next and previous row").set("Enter", "open the row");
    if (find(`[data-rows] ${SELECTS}`)) known.set("x", "select the row");
    if (recovery()) known.set("r", "recover…");
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
    const target = event.target.closest("[data-close], [data-theme-toggle], [data-density-toggle], [data-live-toggle], [data-copy], [data-help]");
    if (!target) return;
    if ("close" in target.dataset) {
      const around = target.closest("dialog");
      if (around) { event.preventDefault(); around.close(); }
    } else if ("themeToggle" in target.dataset) {
      event.preventDefault();
      toggleTheme();
    } else if ("densityToggle" in target.dataset) {
      event.preventDefault();
      toggleDensity();
    } else if ("liveToggle" in target.dataset) {
      toggleLive();
    } else if ("help" in target.dataset) {
      event.preventDefault();
      closeMenus();
      showKeys();
    } else if (navigator.clipboard) {
      navigator.clipboard.writeText(target.dataset.copy).then(() => say("copied"));
    }
  });

  // What was asked for and did not come: said where one looks, and gone with the next answer. A live part says so itself.
  const tell = (text, from) => {
    const place = (dialog?.open && find(".act > .pad", dialog)) || find("#main");
    const note = document.createElement("p");
    note.className = "note unanswered";
    note.dataset.status = "failed";
    note.setAttribute("role", "alert");
    note.textContent = text;
    place.prepend(note);
    note.scrollIntoView({ block: "nearest" });
    from.removeAttribute("aria-busy");
  };
  const markLive = (word) => {
    for (const mark of all(".live")) { mark.classList.toggle("lost", word !== "live"); write(mark, word); }
  };
  const unanswered = (event) => {
    const from = event.detail.elt;
    if (from.matches("[data-live]")) { markLive("not reached"); return; }
    const wrote = event.detail.requestConfig?.verb === "post";
    tell(wrote ? "The console did not answer, so it is not known whether this was done. Look before you send it again."
      : "The console did not answer. Nothing was done; try again in a moment.", from);
  };
  for (const kind of ["sendError", "timeout", "responseError"]) document.addEventListener(`htmx:${kind}`, unanswered);
  // after all that may hold a request back
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.defaultPrevented || event.target.matches("[data-live]")) return;
    for (const note of all(".unanswered")) note.remove();
    event.target.setAttribute("aria-busy", "true");
  });
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    event.detail.elt.removeAttribute("aria-busy");
    if (event.detail.xhr.status < 500 && find(".live.lost")) markLive("live");
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
    else if (pressed === "x") inRow(SELECTS)?.click();
    else if (pressed === "r") recovery()?.click();
    else if (pressed === "Enter" && event.target === document.body) open();
  });
})();
