// The log of a VM: how it was started, what went wrong, how it ended. The end is followed while it is in view.

import { request } from "./api.js";
import { h, message, shown } from "./dom.js";

const kept = 2000; // lines
const longest = 1 << 20; // characters of a line

export function log(panel, v, signal) {
	const lines = h("div", { class: "log mono", role: "log", tabIndex: 0, "aria-label": `Log of ${v.name}` });
	panel.append(h("div", { class: "panel" }, h("h2", {}, "Log"), lines));

	/** line is an element with a line. Texts of the guest may be in it, but not at its beginning. */
	function line(text) {
		const level = /^time=\S+ level=(WARN|ERROR) /.exec(text)?.[1];
		return h("div", { class: `guest ${{ WARN: "warn", ERROR: "bad" }[level] ?? ""}` }, shown(text));
	}

	function add(list) {
		const follows = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
		lines.append(...list.slice(-kept).map(line));
		while (lines.childElementCount > kept) lines.firstChild.remove();
		if (follows) lines.scrollTop = lines.scrollHeight;
	}

	(async () => {
		const answer = await request("GET", `/vms/${encodeURIComponent(v.name)}/log`, { signal });
		const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
		for (let text = ""; ;) {
			const { done, value } = await reader.read();
			if (done) return;
			const list = (text + value).split("\n");
			text = list.pop();
			if (text.length > longest) throw new Error("a line of the log is too long");
			add(list);
		}
	})().catch(e => { if (!signal.aborted) message(e.message, true); });
}
