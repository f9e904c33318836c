// Lists the cases; with an argument, runs those whose names come on standard input, a line each. Each has a process, and so a machine, of its
// own: a fork, because the sanitizers take long to start and to end. What a case says is followed by a line with its exit status.
#define _POSIX_C_SOURCE 200809L // fork
#include <sys/wait.h>
#include <unistd.h>

#include "devices_test.h"

static const struct test *const groups[] = {transport_tests,  stream_tests,    net_tests,  block_tests, balloon_tests,
                                            generation_tests, malformed_tests, work_tests, adopt_tests};
enum { GROUPS = sizeof groups / sizeof *groups, SECONDS = 120 };

static void list(void) {
    for (unsigned i = 0; i < GROUPS; i++)
        for (const struct test *test = groups[i]; test->name; test++)
            puts(test->name);
}

static const struct test *find(const char *name) {
    for (unsigned i = 0; i < GROUPS; i++)
        for (const struct test *test = groups[i]; test->name; test++)
            if (strcmp(name, test->name) == 0)
                return test;
    return 0;
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc < 2) {
        list();
        return 0;
    }
    char name[100];
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        const struct test *test = find(name);
        if (!test)
            return 2;
        pid_t child = fork();
        if (child == 0) {
            alarm(SECONDS);
            test->run();
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        printf("= %d\n", status);
        fflush(stdout);
    }
    return 0;
}
