// Elements, and texts of others in them. Nothing here makes HTML of a text: children are nodes, or become text nodes.

/** h makes an element; properties that begin with "on" are listeners, "class" and those with a hyphen or unknown ones are attributes. */
export function h(tag, properties, ...children) {
	const e = document.createElement(tag);
	for (const [name, value] of Object.entries(properties ?? {})) {
		if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
		else if (value === undefined || value === false) continue;
		else if (name in e && !name.includes("-") && name !== "list") e[name] = value;
		else e.setAttribute(name, value === true ? "" : value);
	}
	e.append(...children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false));
	return e;
}

const longest = 2000;

/** shown makes a text of a guest fit to be shown: what is invisible, or changes the direction, becomes U+FFFD. */
export function shown(text) {
	text = String(text ?? "");
	const cut = text.length > longest;
	return text.slice(0, longest).replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, "\uFFFD") + (cut ? "…" : "");
}

/** guest is an element with a text of a guest. */
export const guest = (text, kind = "span") => h(kind, { class: "guest" }, shown(text));

export function bytes(n) {
	if (n < 1000) return `${Math.round(n)} B`;
	for (const unit of ["kB", "MB", "GB"]) if ((n /= 1000) < 1000) return `${n.toFixed(n < 10 ? 1 : 0)} ${unit}`;
	return `${(n / 1000).toFixed(1)} TB`;
}

export function duration(seconds) {
	seconds = Math.max(0, Math.round(seconds));
	const parts = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
	const i = parts.findIndex(([n]) => seconds >= n);
	if (i < 0) return "0s";
	return parts.slice(i, i + 2).map(([n, unit]) => { const k = Math.floor(seconds / n); seconds -= k * n; return k ? k + unit : ""; }).join(" ").trim();
}

export const since = time => time ? duration((Date.now() - Date.parse(time)) / 1000) : "";

export function message(text, bad = false) {
	const e = h("div", { class: bad ? "bad" : "" }, shown(text));
	document.getElementById("messages").append(e);
	setTimeout(() => e.remove(), bad ? 12000 : 5000);
}

/** attempt runs something and shows why it failed. A button is disabled meanwhile. */
export async function attempt(button, run) {
	if (button) button.disabled = true;
	try { return await run(); }
	catch (e) { if (e.name !== "AbortError") message(e.message, true); }
	finally { if (button) button.disabled = false; }
}

/**
 * ask shows a dialog with fields and returns their values by name, or null. With run it stays open until that has succeeded with them: an error
 * is shown at the field of the name error.field, or below all. Closing it ends the signal that run has.
 */
export function ask(title, fields, action, danger = false, run = null) {
	const dialog = document.getElementById("dialog");
	return new Promise(resolve => {
		let answer = null;
		const leave = new AbortController();
		const problem = name => h("span", { class: "problem", role: "alert", "data-of": name, hidden: true });
		const button = h("button", { class: danger ? "danger" : "primary" }, action);
		const input = f => f.options ? h("select", { name: f.name }, f.options.map(o => h("option", { value: o }, o)))
			: h(f.lines ? "textarea" : "input", { name: f.name, value: f.value ?? "", rows: f.lines, placeholder: f.placeholder ?? "", required: f.required ?? false, pattern: f.pattern, autocomplete: "off", spellcheck: false });
		const say = e => {
			const at = [...form.querySelectorAll(".problem")].find(p => p.dataset.of === e.field) ?? form.querySelector('.problem[data-of=""]');
			at.textContent = shown(e.message);
			at.hidden = false;
			const field = form.elements.namedItem(at.dataset.of || " ");
			field?.setAttribute("aria-invalid", "true");
			field?.focus();
		};
		const form = h("form", { method: "dialog", onsubmit: async e => {
			const values = Object.fromEntries(new FormData(form));
			if (!run) { answer = values; return; }
			e.preventDefault();
			for (const p of form.querySelectorAll(".problem")) p.hidden = true;
			for (const i of form.querySelectorAll("[aria-invalid]")) i.removeAttribute("aria-invalid");
			button.disabled = true;
			button.textContent = `${action} …`;
			try {
				await run(values, leave.signal);
				if (leave.signal.aborted) return;
				answer = values;
				dialog.close();
			} catch (error) {
				if (!leave.signal.aborted) say(error);
			} finally {
				button.disabled = false;
				button.textContent = action;
			}
		} },
			h("h3", {}, title),
			fields.map(f => typeof f === "string" ? h("p", { class: "dim" }, f) : h("label", {}, f.label, input(f), run && problem(f.name))),
			run && problem(""),
			h("div", { class: "row between" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), button));
		dialog.replaceChildren(form);
		dialog.onclose = () => { leave.abort(); resolve(answer); };
		dialog.showModal();
	});
}

export const vmName = { pattern: "[a-z0-9][a-z0-9_.\\-]{0,62}", required: true };
