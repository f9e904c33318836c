// netprobe: what the guest sees of its network. Runs in the guest; one reading a line, in nanoseconds of its monotonic
// clock, so that no shell and no program's start is in the figures.
//
//   netprobe connect ADDRESS PORT COUNT    from connect() to its return, COUNT times
//   netprobe dns SERVER NAME COUNT         from a query for NAME's address to the answer, over UDP
//   netprobe get ADDRESS PORT              reads to the end of the stream
//   netprobe put ADDRESS PORT BYTES        sends BYTES, ends the stream and waits until the other side has ended its own
//   netprobe hold ADDRESS PORT COUNT       opens COUNT connections at once, and holds them until standard input ends
//   netprobe serve PORT BYTES              serves one connection after another on 127.0.0.1, until it is killed: after a 'g' it
//                                          sends BYTES, after a 'p' it reads to the end and answers with one byte
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char buffer[256 << 10];

static _Noreturn void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int open_socket(int type, const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, type, 0);
    if (fd < 0)
        fail("socket");
    if (inet_pton(AF_INET, address, &to.sin_addr) != 1) {
        fprintf(stderr, "netprobe: %s is no IPv4 address\n", address);
        exit(2);
    }
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        fail("connect");
    return fd;
}

static void probe_connect(const char *address, int port, int count) {
    while (count-- > 0) {
        int64_t start = now();
        int fd = open_socket(SOCK_STREAM, address, port);
        printf("%lld\n", (long long)(now() - start));
        close(fd);
    }
}

// make_query writes a question for an A record (RFC 1035, section 4.1) and returns its length.
static size_t make_query(uint16_t id, const char *name) {
    size_t at = 12;
    memset(buffer, 0, at);
    buffer[0] = (char)(id >> 8);
    buffer[1] = (char)id;
    buffer[2] = 1; // recursion desired
    buffer[5] = 1; // one question
    while (*name) {
        size_t label = strcspn(name, ".");
        buffer[at++] = (char)label;
        memcpy(buffer + at, name, label);
        at += label;
        name += label + (name[label] == '.');
    }
    memcpy(buffer + at, "\0\0\1\0\1", 5);
    return at + 5;
}

static void probe_dns(const char *server, const char *name, int count) {
    int fd = open_socket(SOCK_DGRAM, server, 53);
    for (int i = 0; i < count; i++) {
        size_t length = make_query((uint16_t)i, name);
        int64_t start = now();
        if (send(fd, buffer, length, 0) < 0)
            fail("send");
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n < 12)
            fail("recv");
        if ((buffer[3] & 15) != 0 || buffer[7] == 0) {
            fprintf(stderr, "netprobe: code %d, %d answers\n", buffer[3] & 15, buffer[7]);
            exit(1);
        }
        printf("%lld\n", (long long)(now() - start));
    }
}

static void drain(int fd) {
    ssize_t n;
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        ;
    if (n < 0)
        fail("read");
}

static void probe_get(const char *address, int port) {
    int64_t start = now();
    int fd = open_socket(SOCK_STREAM, address, port);
    drain(fd);
    printf("%lld\n", (long long)(now() - start));
}

static void probe_put(const char *address, int port, long long bytes) {
    int64_t start = now();
    int fd = open_socket(SOCK_STREAM, address, port);
    while (bytes > 0) {
        ssize_t n = write(fd, buffer, bytes < (long long)sizeof buffer ? (size_t)bytes : sizeof buffer);
        if (n < 0)
            fail("write");
        bytes -= n;
    }
    shutdown(fd, SHUT_WR);
    drain(fd);
    printf("%lld\n", (long long)(now() - start));
}

static void probe_hold(const char *address, int port, int count) {
    int64_t start = now();
    for (int i = 0; i < count; i++)
        open_socket(SOCK_STREAM, address, port);
    printf("%lld\n", (long long)(now() - start));
    fflush(stdout);
    while (read(0, buffer, sizeof buffer) > 0)
        ;
}

static void send_all(int fd, long long bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, buffer, bytes < (long long)sizeof buffer ? (size_t)bytes : sizeof buffer);
        if (n < 0)
            return; // the host has gone
        bytes -= n;
    }
}

static void serve(int port, long long bytes) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_ANY)}};
    int l = socket(AF_INET, SOCK_STREAM, 0);
    if (l < 0 || bind(l, (struct sockaddr *)&at, sizeof at) != 0 || listen(l, 128) != 0)
        fail("listen");
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        char order = 0;
        int fd = accept(l, NULL, NULL);
        if (fd < 0)
            fail("accept");
        if (read(fd, &order, 1) == 1 && order == 'g') {
            send_all(fd, bytes);
        } else if (order == 'G') { // of "GET /": the rest of so short a request is there, too
            if (read(fd, buffer, sizeof buffer) < 0)
                fail("read");
            dprintf(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %lld\r\n\r\n", bytes);
            send_all(fd, bytes);
        } else if (order == 'p' || order == 0) { // 0: of put
            drain(fd);
            send_all(fd, 1);
        }
        close(fd);
    }
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "connect") == 0)
        probe_connect(argv[2], atoi(argv[3]), atoi(argv[4]));
    else if (argc == 5 && strcmp(argv[1], "dns") == 0)
        probe_dns(argv[2], argv[3], atoi(argv[4]));
    else if (argc == 4 && strcmp(argv[1], "get") == 0)
        probe_get(argv[2], atoi(argv[3]));
    else if (argc == 5 && strcmp(argv[1], "put") == 0)
        probe_put(argv[2], atoi(argv[3]), atoll(argv[4]));
    else if (argc == 5 && strcmp(argv[1], "hold") == 0)
        probe_hold(argv[2], atoi(argv[3]), atoi(argv[4]));
    else if (argc == 4 && strcmp(argv[1], "serve") == 0)
        serve(atoi(argv[2]), atoll(argv[3]));
    else {
        fprintf(stderr, "usage: netprobe connect|dns|get|put|hold|serve ...\n");
        return 2;
    }
    return 0;
}
