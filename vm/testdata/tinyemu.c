// A stand-in for TinyEMU as container2wasm builds it: the same calls of WASI in the same order, written from what that does. Instead of an
// emulated processor there is a shell with a handful of commands, which runs between two waits of the main loop. What TinyEMU would not
// survive ends this program with exit code 1 and a line on standard error. TestRunModule runs it.
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <wasi/api.h>

#define INFO_SIZE 1024 // bytes for the arguments, variables and mounts that the guest gets
#define SLEEP_MS 10    // the longest wait for input

static void fail(const char *what) {
	fprintf(stderr, "stand-in: %s (errno %d)\n", what, errno);
	exit(1);
}

// The network card.

static int listener = -1, link_fd = -1;
static uint8_t mac[6], frame[65536], answer[65536];
static int answer_size;

// link_recv receives n bytes, or nothing where none are there yet. Part of a header cannot be put back.
static int link_recv(uint8_t *to, size_t n, int header) {
	for (size_t got = 0; got < n;) {
		__wasi_iovec_t v = {to + got, n - got};
		__wasi_size_t size = 0;
		__wasi_roflags_t flags;
		int err = __wasi_sock_recv(link_fd, &v, 1, 0, &size, &flags);
		if (err == __WASI_ERRNO_AGAIN && header && got == 0)
			return 0;
		if (err == __WASI_ERRNO_AGAIN && !header)
			continue;
		if (err != 0 || size == 0)
			fail(err ? "receive" : "the network has ended");
		if (header && size != n)
			fail("part of a header");
		got += size;
	}
	return 1;
}

static void link_send(const uint8_t *p, uint32_t n) {
	uint8_t header[4] = {n >> 24, n >> 16, n >> 8, n};
	__wasi_ciovec_t v[2] = {{header, 4}, {p, n}};
	__wasi_size_t size = 0;
	if (__wasi_sock_send(link_fd, v, 2, 0, &size) != 0 || size != n + 4)
		fail("send");
}

static void link_poll(void) {
	if (listener < 0)
		return;
	if (link_fd < 0) {
		__wasi_fd_t fd;
		int err = __wasi_sock_accept(listener, __WASI_FDFLAGS_NONBLOCK, &fd);
		if (err == __WASI_ERRNO_AGAIN)
			return; // tried again at the next wait
		if (err != 0)
			fail("accept");
		link_fd = fd;
	}
	uint8_t header[4];
	if (link_recv(header, 4, 1)) {
		uint32_t n = (uint32_t)header[0] << 24 | header[1] << 16 | header[2] << 8 | header[3];
		if (n > sizeof answer)
			fail("a frame of nonsense");
		link_recv(answer, n, 0);
		answer_size = n;
	}
}

// The console.

static char line[8192];
static int line_size;
static int escaped;

// console_poll has what was typed, without TinyEMU's own keys.
static void console_poll(void) {
	char buf[128];
	ssize_t n = read(0, buf, sizeof buf);
	if (n < 0)
		return;
	if (n == 0)
		fail("the input has ended");
	for (int i = 0; i < n; i++) {
		if (escaped) {
			escaped = 0;
			if (buf[i] == 'x')
				exit(0);
			if (buf[i] != 1)
				continue;
		} else if (buf[i] == 1) {
			escaped = 1;
			continue;
		}
		if (line_size == sizeof line - 1)
			fail("a line of more than a terminal keeps");
		line[line_size++] = buf[i];
	}
}

static struct timespec now(void) {
	struct timespec t;
	if (clock_gettime(CLOCK_MONOTONIC, &t))
		fail("clock");
	return t;
}

// turn is one turn of the main loop: it waits, looks at console and network, and lets the guest run a little, which reads the clock often.
static void turn(void) {
	fd_set r;
	FD_ZERO(&r);
	FD_SET(0, &r);
	struct timeval wait = {0, SLEEP_MS * 1000};
	int ready = select(1, &r, NULL, NULL, &wait);
	if (ready < 0)
		fail("select");
	if (ready > 0 && FD_ISSET(0, &r))
		console_poll();
	link_poll();
	for (int i = 0; i < 1000; i++)
		now();
}

// until waits for a byte on the console and returns what came before it.
static char *until(char end) {
	static char taken[sizeof line];
	char *at;
	while (!(at = memchr(line, end, line_size)))
		turn();
	int n = at - line;
	memcpy(taken, line, n);
	taken[n] = 0;
	line_size -= n + 1;
	memmove(line, at + 1, line_size);
	return taken;
}

static void put(const char *text) {
	for (; *text; text++) { // as a terminal does
		if (*text == '\n')
			putchar('\r');
		putchar(*text);
	}
	fflush(stdout);
}

// dhcp asks for an address and waits for the offer, as the guest does before it runs anything.
static void dhcp(void) {
	static const uint8_t options[] = {99, 130, 83, 99, 53, 1, 1, 255};
	uint8_t *ip = frame + 14, *udp = ip + 20, *b = udp + 8;
	int size = 14 + 20 + 8 + 236 + sizeof options;
	for (int i = 0; link_fd < 0; i++) {
		if (i == 500)
			fail("the link does not come up");
		turn();
	}
	memset(frame, 0xff, 6);
	memcpy(frame + 6, mac, 6);
	frame[12] = 8;
	ip[0] = 0x45, ip[2] = (size - 14) >> 8, ip[3] = (size - 14) & 255, ip[8] = 64, ip[9] = 17;
	memset(ip + 16, 0xff, 4);
	udp[1] = 68, udp[3] = 67, udp[4] = (size - 34) >> 8, udp[5] = (size - 34) & 255;
	b[0] = b[1] = 1, b[2] = 6, b[10] = 0x80;
	memcpy(b + 4, "abcd", 4);
	memcpy(b + 28, mac, 6);
	memcpy(b + 236, options, sizeof options);
	uint32_t sum = 0;
	for (int i = 0; i < 20; i += 2)
		sum += ip[i] << 8 | ip[i + 1];
	sum = ~((sum & 0xffff) + (sum >> 16));
	ip[10] = sum >> 8, ip[11] = sum;
	link_send(frame, size);
	for (int i = 0; !(answer_size > 285 && answer[23] == 17 && answer[37] == 68); i++) {
		if (i == 1000)
			fail("no answer of DHCP");
		turn();
	}
}

static int run(char *command, const char *script, const char *marker) {
	char text[256];
	char *arg = strchr(command, ' ');
	if (arg)
		*arg++ = 0;
	if (!strcmp(command, "script")) {
		put(script);
	} else if (!strcmp(command, "lines")) {
		put("one\n\n");
		put(marker);
		put(" two\n\rthree");
	} else if (!strcmp(command, "exit")) {
		return atoi(arg);
	} else if (!strcmp(command, "die")) {
		exit(9);
	} else if (!strcmp(command, "hang")) {
		put("before");
		for (;;)
			turn();
	} else if (!strcmp(command, "spin")) {
		for (volatile int i = 0;; i++)
			;
	} else if (!strcmp(command, "cat") || !strcmp(command, "size")) {
		FILE *f = fopen(arg, "r");
		struct stat st;
		if (!f || fstat(fileno(f), &st)) {
			put(arg);
			return 1;
		}
		text[fread(text, 1, sizeof text - 1, f)] = 0;
		if (!strcmp(command, "size"))
			sprintf(text, "%d bytes", (int)st.st_size);
		put(text);
	} else if (!strcmp(command, "write")) {
		FILE *f = fopen(arg, "w");
		if (!f || fputs("written", f) < 0 || fclose(f)) {
			put(arg);
			return 1;
		}
	} else if (!strcmp(command, "input")) {
		put("\"");
		for (char *c = until(4); *c; c++) {
			char one[2] = {*c};
			put(*c == '\n' ? "\\n" : one);
		}
		put("\\x04\" <nil>");
	} else if (!strcmp(command, "gateway")) {
		uint8_t *option = answer + 14 + 20 + 8 + 240;
		while (option[0] != 53 && option + option[1] + 4 < answer + answer_size)
			option += option[1] + 2;
		sprintf(text, "option %d: %d for %.4s", option[0], option[2], answer + 14 + 20 + 8 + 4);
		put(text);
	}
	return 0;
}

// preopens looks for directories as wasi-libc does and returns the length of what tells the guest of them.
static int preopens(void) {
	int size = 0;
	for (__wasi_fd_t fd = 3;; fd++) {
		__wasi_prestat_t stat;
		int err = __wasi_fd_prestat_get(fd, &stat);
		if (err == __WASI_ERRNO_BADF)
			return size;
		if (err != 0)
			fail("prestat");
		if (stat.tag == __WASI_PREOPENTYPE_DIR)
			size += 4 + stat.u.dir.pr_name_len;
	}
}

static int quoted(const char *text) {
	int n = 0;
	for (; *text; text++)
		n += *text == ' ' || *text == '\n' ? 2 : 1;
	return n;
}

int main(int argc, char **argv) {
	static const struct option options[] = {{"net", required_argument}, {"mac", required_argument}, {"entrypoint", required_argument}, {NULL}};
	const char *entrypoint = "";
	int option, c, info = preopens();
	while ((c = getopt_long_only(argc, argv, "+h", options, &option)) != -1) {
		if (c != 0)
			fail("an option that it does not have");
		if (option == 0) {
			if (strncmp(optarg, "socket", 6) || !getenv("LISTEN_FDS"))
				fail("not a socket");
			listener = sscanf(optarg, "socket=listenfd=%d", &listener) == 1 ? listener : 3;
		} else if (option == 1) {
			if (sscanf(optarg, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) != 6)
				fail("not an address");
		} else {
			entrypoint = optarg;
		}
	}
	if (strcmp(entrypoint, "/bin/sh") || argc - optind != 2 || strcmp(argv[optind], "-c"))
		fail("not a shell");
	if (info + quoted(argv[optind + 1]) + 64 > INFO_SIZE)
		fail("more arguments than TinyEMU passes on");
	fcntl(0, F_SETFL, O_NONBLOCK);
	put("==========\nstand-in boots\n");
	if (listener >= 0)
		dhcp();
	char marker[40] = "", *at = strstr(argv[optind + 1], ";m=agentvm");
	if (!at || strlen(at) < 42)
		fail("no marker");
	memcpy(marker, at + 3, 39);
	static char encoded[1 << 16], script[1 << 16], mark[64];
	sprintf(mark, "\n%s<\n", marker);
	put(mark);
	mark[40] = '+';
	for (char *next; strcmp(next = until('\n'), ".");) {
		strcat(encoded, next);
		put(mark);
	}
	char *to = script;
	for (char *from = encoded; *from; from++) {
		int octal;
		if (*from == '\\' && sscanf(from, "\\0%3o", &octal) == 1) {
			*to++ = octal;
			from += 4;
		} else {
			*to++ = *from;
		}
	}
	mark[40] = '=';
	put(mark);
	char *command = strstr(script, "/bin/sh -c '");
	char *end = command ? strchr(command += 12, '\'') : NULL;
	if (!end)
		fail("no command");
	char *copy = strndup(command, end - command);
	int code = run(copy, script, marker);
	sprintf(mark, "\n%s>%d\n", marker, code);
	put(mark);
	for (;;)
		turn(); // the host does not wait for the guest to power off
}
