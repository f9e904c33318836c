// The files of a VM: browse, edit, upload, download.

import { call, request, vm } from "./api.js";
import { ask, attempt, bytes, guest, h, message } from "./dom.js";

const editable = 1 << 20; // bytes of a file that is edited here
const places = new Map(); // where each VM was left

const join = (dir, name) => dir === "/" ? `/${name}` : `${dir}/${name}`;
const parent = path => path.slice(0, path.lastIndexOf("/")) || "/";

export function files(panel, v, signal) {
	const at = (path, rest = "") => vm(v.name, `/files${rest}?path=${encodeURIComponent(path)}`);
	const go = path => attempt(null, () => show(path));

	async function show(path) {
		const list = await call("GET", at(path, "/list"), undefined, signal);
		if (signal.aborted) return;
		places.set(v.name, path);
		list.sort((a, b) => (b.type === "directory") - (a.type === "directory") || (a.name < b.name ? -1 : 1));
		const upload = h("input", { type: "file", multiple: true, hidden: true, onchange: () => put(path, upload.files) });
		const rows = list.slice(0, 2000).map(f => row(path, f));
		const box = h("div", {
			class: "panel", ondragover: e => { e.preventDefault(); box.classList.add("drop"); }, ondragleave: () => box.classList.remove("drop"),
			ondrop: e => { e.preventDefault(); box.classList.remove("drop"); put(path, e.dataTransfer.files); },
		}, h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Name", "Size", "Mode", "Changed", ""].map(t => h("th", {}, t)))), h("tbody", {}, rows))),
		list.length > rows.length && h("p", { class: "dim" }, `${list.length - rows.length} more are not shown.`), !list.length && h("p", { class: "dim" }, "Empty."));
		panel.replaceChildren(h("div", { class: "row between" }, crumbs(path), h("div", { class: "row" }, upload,
			h("button", { type: "button", onclick: () => upload.click() }, "Upload"),
			h("button", { type: "button", onclick: e => attempt(e.target, async () => {
				const a = await ask("New directory", [{ name: "name", label: "Name", required: true }], "Make");
				if (a) { await call("POST", at(join(path, a.name), "/directory")); await show(path); }
			}) }, "New directory"),
			h("button", { type: "button", onclick: e => attempt(e.target, async () => {
				const a = await ask("New file", [{ name: "name", label: "Name", required: true }], "Edit");
				if (a) edit(join(path, a.name), "");
			}) }, "New file"))), box);
	}

	function crumbs(path) {
		const parts = path.split("/").filter(Boolean);
		return h("div", { class: "row mono" }, h("button", { class: "small", type: "button", onclick: () => go("/") }, "/"),
			parts.map((part, i) => h("button", { class: "small", type: "button", onclick: () => go(`/${parts.slice(0, i + 1).join("/")}`) }, guest(part))));
	}

	function row(dir, f) {
		const path = join(dir, f.name);
		const folder = f.type === "directory";
		return h("tr", {},
			h("td", { class: "mono" }, h("button", { class: "small", type: "button", onclick: e => attempt(e.target, () => folder ? show(path) : enter(path, f)) }, folder ? "▸ " : "", guest(f.name)), f.target && h("span", { class: "dim" }, " → ", guest(f.target))),
			h("td", { class: "number" }, folder ? "" : bytes(f.size)), h("td", { class: "mono dim" }, f.mode), h("td", { class: "when" }, new Date(f.modified).toLocaleString()),
			h("td", { class: "tools" }, !folder && h("button", { class: "small", type: "button", onclick: e => attempt(e.target, () => download(path, f.name)) }, "Download"), " ",
				h("button", { class: "small", type: "button", onclick: e => attempt(e.target, async () => {
					const a = await ask("Rename", [{ name: "to", label: "Path", value: path, required: true }], "Rename");
					if (a) { await call("POST", vm(v.name, "/files/move"), { from: path, to: a.to }); await show(dir); }
				}) }, "Rename"), " ",
				h("button", { class: "small danger", type: "button", onclick: e => attempt(e.target, async () => {
					if (!await ask("Delete?", [path], "Delete", true)) return;
					await call("DELETE", at(path));
					await show(dir);
				}) }, "Delete")));
	}

	/** enter opens what a link leads to, or a file: in the editor if it is a text. */
	async function enter(path, f) {
		if (f.type === "link") {
			try { return await show(path); } catch { /* no directory */ }
		}
		if (f.size > editable) return download(path, f.name);
		const body = await (await request("GET", at(path), { signal })).arrayBuffer();
		try { edit(path, new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body)); } catch { save(new Blob([body]), f.name); }
	}

	function edit(path, text) {
		const area = h("textarea", { class: "editor", value: text, spellcheck: false, "aria-label": "Text of the file" });
		const write = e => attempt(e.target.tagName === "BUTTON" ? e.target : null, async () => { await request("PUT", at(path), { body: area.value }); message(`${path} was saved`); });
		area.onkeydown = e => { if ((e.ctrlKey || e.metaKey) && e.key === "s") { e.preventDefault(); write(e); } };
		panel.replaceChildren(h("div", { class: "row between" }, guest(path), h("div", { class: "row" }, h("button", { type: "button", onclick: () => go(parent(path)) }, "Close"), h("button", { class: "primary", type: "button", onclick: write, title: "Ctrl-S" }, "Save"))), area);
		area.focus();
		area.setSelectionRange(0, 0);
	}

	async function put(dir, list) {
		await attempt(null, async () => {
			for (const file of list) await request("PUT", at(join(dir, file.name)), { body: file });
			message(`${list.length} uploaded`);
			await show(dir);
		});
	}

	const download = async (path, name) => save(await (await request("GET", at(path), { signal })).blob(), name);

	function save(blob, name) {
		const url = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
		h("a", { href: url, download: name.replace(/[^\w .+-]/g, "_") }).click();
		setTimeout(() => URL.revokeObjectURL(url), 60000);
	}

	go(places.get(v.name) ?? "/root");
}
