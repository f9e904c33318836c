// A server of one process that reads SIZE bytes of each connection at port PORT and answers with their sum.
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 600 };

static struct pollfd fds[MOST];
static struct {
    unsigned bytes, sum;
} of[MOST];

static int hear(int i) {
    unsigned char b[65536];
    char text[32];
    long n = read(fds[i].fd, b, sizeof b);
    for (long k = 0; k < n; k++)
        of[i].sum = of[i].sum * 31 + b[k];
    if (n > 0 && (of[i].bytes += (unsigned)n) < SIZE)
        return 1;
    if (n > 0)
        n = write(fds[i].fd, text, (size_t)snprintf(text, sizeof text, "%u\n", of[i].sum));
    close(fds[i].fd);
    return 0;
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int count = 1, server = socket(AF_INET, SOCK_STREAM, 0);
    if (server < 0 || bind(server, (struct sockaddr *)&at, sizeof at) != 0 || listen(server, 512) != 0)
        return 1;
    fds[0] = (struct pollfd){.fd = server, .events = POLLIN};
    for (;;) {
        poll(fds, (nfds_t)count, -1);
        for (int i = count - 1; i > 0; i--)
            if (fds[i].revents && !hear(i)) {
                count--;
                fds[i] = fds[count];
                of[i] = of[count];
            }
        if (fds[0].revents && count < MOST) {
            fds[count] = (struct pollfd){.fd = accept(server, 0, 0), .events = POLLIN};
            of[count].bytes = of[count].sum = 0;
            count += fds[count].fd >= 0;
        }
    }
}
