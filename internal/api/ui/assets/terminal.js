// Terminals: one for each VM. It stays when another view is shown. xterm.js is loaded with the first.

import { socket, vm } from "./api.js";
import { h } from "./dom.js";

const open = new Map(); // by VM

let loading;
const load = () => loading ??= (async () => {
	// xterm.js makes style elements: they need the page's nonce.
	const nonce = document.querySelector("meta[name=nonce]").content;
	const create = document.createElement;
	document.createElement = function (tag, ...rest) {
		const e = create.call(this, tag, ...rest);
		if (tag === "style") e.nonce = nonce;
		return e;
	};
	const style = h("link", { rel: "stylesheet", href: "/assets/xterm.css" });
	const styled = new Promise(done => { style.onload = style.onerror = done; });
	document.head.append(style);
	const [{ Terminal }, { FitAddon }] = await Promise.all([import("./xterm.js"), import("./xterm-fit.js"), styled]);
	return { Terminal, FitAddon };
})();

const acknowledged = 64 << 10; // bytes after which the server learns what was shown

async function start(v) {
	const { Terminal, FitAddon } = await load();
	const term = new Terminal({
		cols: 80, rows: 24, scrollback: 5000, cursorBlink: true, fontSize: 14, fontFamily: 'ui-monospace, "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace',
		theme: { background: "#0f1217", foreground: "#e4e8ef", cursor: "#7ba3ff", selectionBackground: "#3b4a6b" },
		windowOptions: {}, // no reports of the window, and no changes of it
		linkHandler: { activate() {} }, // links of guests lead nowhere
	});
	// Titles, hyperlinks and the clipboard are not the guest's.
	for (const number of [0, 1, 2, 8, 9, 52, 777, 1337]) term.parser.registerOscHandler(number, () => true);
	const fit = new FitAddon();
	term.loadAddon(fit);
	const box = h("div", { class: "screen", "aria-label": `Terminal of ${v.name}` });
	const one = { term, fit, box, ended: false };
	open.set(v.name, one);

	const s = one.socket = socket(vm(v.name, "/terminal"));
	const encoder = new TextEncoder();
	const send = data => s.readyState === WebSocket.OPEN && s.send(data);
	const resize = () => send(JSON.stringify({ columns: term.cols, rows: term.rows }));
	let read = 0, told = 0;
	s.onopen = () => { send(JSON.stringify({ read })); resize(); };
	s.onmessage = ({ data }) => {
		if (typeof data === "string") {
			const end = JSON.parse(data);
			term.write(`\r\n\x1b[2m[${end.error ? end.error.replace(/[^ -~]/g, "?") : `ended with ${end.signal ? `signal ${end.signal}` : `code ${end.exitCode}`}`}; Enter opens a new shell]\x1b[0m\r\n`);
			return;
		}
		const n = data.byteLength;
		term.write(new Uint8Array(data), () => {
			read += n;
			if (read - told >= acknowledged) { told = read; send(JSON.stringify({ read })); }
		});
	};
	s.onclose = () => { one.ended = true; };
	term.onData(text => {
		if (one.ended && text === "\r") return one.again?.();
		send(encoder.encode(text));
	});
	term.onBinary(text => send(Uint8Array.from(text, c => c.charCodeAt(0))));
	term.onResize(resize);
	return one;
}

export function closeTerminal(name) {
	const one = open.get(name);
	if (!one) return;
	open.delete(name);
	one.socket.close();
	one.term.dispose();
}

export async function terminal(panel, v, signal) {
	let one = open.get(v.name);
	if (one?.ended) { closeTerminal(v.name); one = null; }
	const fresh = !one;
	one ??= await start(v);
	if (signal.aborted) return;
	panel.replaceChildren(one.box);
	if (fresh) one.term.open(one.box);
	one.again = () => terminal(panel, v, signal);
	const fit = () => one.fit.fit();
	const watcher = new ResizeObserver(fit);
	watcher.observe(one.box);
	signal.addEventListener("abort", () => watcher.disconnect());
	fit();
	one.term.focus();
}
