// The program in the guest that stands for each command of the host. It passes its arguments, its standard input as far as the host
// asks for it, and what the host answers, through a Unix socket; call.go has the protocol. It is built by build.sh without a C library,
// so that starting it costs a command little. Its own name, the last part of argv[0], says which command it is.

typedef unsigned long size;
typedef unsigned int u32;

enum { sys_read = 63, sys_write = 64, sys_ppoll = 73, sys_exit_group = 94, sys_socket = 198, sys_connect = 203 };
enum { EINTR = 4, EAGAIN = 11 };

struct pollfd { int fd; short events, revents; };
struct address { unsigned short family; char path[24]; };

static char buffer[4 + (64 << 10)];
static char arguments[4 + (128 << 10)]; // maxArguments of call.go
static const char place[] = "/run/agentvm/bind.sock";

#ifdef __aarch64__
static long call(long number, long a, long b, long c, long d, long e) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}

__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl begin\n");
#else
static long call(long number, long a, long b, long c, long d, long e) {
    register long a7 __asm__("a7") = number;
    register long a0 __asm__("a0") = a;
    register long a1 __asm__("a1") = b;
    register long a2 __asm__("a2") = c;
    register long a3 __asm__("a3") = d;
    register long a4 __asm__("a4") = e;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2), "r"(a3), "r"(a4) : "memory");
    return a0;
}

__asm__(".globl _start\n_start:\n\tmv a0, sp\n\tandi sp, sp, -16\n\tcall begin\n");
#endif

static size length(const char *s) {
    size n = 0;
    while (s[n]) n++;
    return n;
}

static __attribute__((noreturn)) void leave(int code) {
    for (;;) call(sys_exit_group, code, 0, 0, 0, 0);
}

// put writes everything; a stream without a reader ends the program, and so the call.
static void put(int fd, const char *b, size n) {
    while (n) {
        long r = call(sys_write, fd, (long)b, n, 0, 0);
        if (r == -EINTR) continue;
        if (r == -EAGAIN) { // a non-blocking terminal or pipe that the program inherited
            struct pollfd p = {fd, 4, 0};
            call(sys_ppoll, (long)&p, 1, 0, 0, 0);
            continue;
        }
        if (r <= 0) leave(141);
        b += r;
        n -= r;
    }
}

static __attribute__((noreturn)) void fail(const char *text) {
    call(sys_write, 2, (long)text, length(text), 0, 0);
    leave(125);
}

static void get(int fd, char *b, size n) {
    while (n) {
        long r = call(sys_read, fd, (long)b, n, 0, 0);
        if (r == -EINTR) continue;
        if (r <= 0) fail("agentvm: the host has cut the call off: too many at once, or the VM is ending\n");
        b += r;
        n -= r;
    }
}

// The compiler calls it for assignments of structures.
void *memcpy(void *to, const void *from, size n) {
    for (size i = 0; i < n; i++) ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

static void set(char *b, u32 v) {
    for (int i = 0; i < 4; i++) b[i] = v >> (8 * i);
}

__attribute__((noreturn, used)) void begin(long *stack) {
    char **argv = (char **)(stack + 1);
    size used = 4;
    for (long i = 0; i < stack[0]; i++) {
        const char *s = argv[i];
        if (i == 0)
            for (const char *p = s; *p; p++)
                if (*p == '/') s = p + 1;
        size n = length(s) + 1; // NUL-terminated
        if (n > sizeof arguments - used) fail("agentvm: the arguments of a host command have at most 128 KiB\n");
        for (size k = 0; k < n; k++) arguments[used + k] = s[k];
        used += n;
    }
    set(arguments, used - 4);
    int host = call(sys_socket, 1, 1 | 02000000, 0, 0, 0);
    struct address a = {1, {0}};
    for (size i = 0; i < sizeof place; i++) a.path[i] = place[i];
    if (host < 0 || call(sys_connect, host, (long)&a, 2 + sizeof place, 0, 0) < 0) fail("agentvm: the host gives this VM no commands\n");
    put(host, arguments, used);
    u32 wanted = 0; // bytes of standard input that the host asks for
    for (;;) {
        struct pollfd p[2] = {{host, 1, 0}, {wanted ? 0 : -1, 1, 0}};
        long r = call(sys_ppoll, (long)p, 2, 0, 0, 0);
        if (r == -EINTR) continue;
        if (r < 0) fail("agentvm: waiting for the host failed\n");
        if (p[1].revents) {
            long n = call(sys_read, 0, (long)buffer + 4, wanted, 0, 0);
            if (n != -EAGAIN && n != -EINTR) {
                if (n < 0) n = 0; // closed or a directory: it has ended
                set(buffer, n);
                put(host, buffer, n + 4);
                wanted = 0;
            }
        }
        if (!p[0].revents) continue;
        unsigned char head[5];
        get(host, (char *)head, sizeof head);
        u32 n = head[1] | head[2] << 8 | head[3] << 16 | (u32)head[4] << 24;
        switch (head[0]) {
        case 'x': leave(n);
        case 'r':
            wanted = n < sizeof buffer - 4 ? n : sizeof buffer - 4;
            break;
        default:
            while (n) {
                u32 part = n < sizeof buffer ? n : sizeof buffer;
                get(host, buffer, part);
                put(head[0] == 'e' ? 2 : 1, buffer, part);
                n -= part;
            }
        }
    }
}
