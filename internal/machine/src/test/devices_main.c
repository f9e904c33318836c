// Lists the cases, or runs the one that is named.
#include "devices_test.h"

int main(int argc, char **argv) {
    const struct test *groups[] = {transport_tests, stream_tests, net_tests, block_tests, balloon_tests, generation_tests,
                                   malformed_tests, work_tests, adopt_tests};
    for (unsigned i = 0; i < sizeof groups / sizeof *groups; i++)
        for (const struct test *test = groups[i]; test->name; test++) {
            if (argc < 2) {
                puts(test->name);
            } else if (strcmp(argv[1], test->name) == 0) {
                test->run();
                return 0;
            }
        }
    return argc < 2 ? 0 : 2;
}
