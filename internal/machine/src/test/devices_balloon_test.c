// The balloon: pages that the driver reports reach Go as ranges, and come back to the driver only after Go was there.
#include "devices_test.h"

enum { SLOT = SLOT_BALLOON, REPORTS = 2, QUEUE = 32, REPORTING = 1 << 5 };

static struct queue queue;

static void balloon_start(unsigned index) {
    driver_start(SLOT, REPORTING);
    queue = queue_setup(SLOT, index, QUEUE);
    driver_ok(SLOT);
}

static uint64_t page(unsigned number) { return RAM_BASE + 0x100000 + number * PAGE_SIZE; }

static void report(uint64_t gpa, uint32_t len) {
    add_chain(&queue, (struct buffer[]){{gpa, len, true}}, 1);
    kick(&queue);
    check_released();
}

static void expect_range(unsigned index, uint64_t gpa, uint32_t size) {
    CHECK(index < released_pages.count);
    CHECK_EQ(released_pages.range[index].address, wasi_address(guest(gpa)));
    CHECK_EQ(released_pages.range[index].size, size);
}

static bool answered(void) {
    uint32_t head, len;
    if (!next_used(&queue, &head, &len))
        return false;
    CHECK_EQ(len, 0);
    return true;
}

// go_was_there is what happens between two slices.
static void go_was_there(void) {
    released_pages.count = 0;
    devices_poll(0);
}

static void offers_reporting_only(void) {
    machine_start();
    CHECK_EQ(reg(SLOT, 0x08), 5);
    CHECK_EQ(offered_features(SLOT) & 0xff, REPORTING);
    CHECK_EQ(reg(SLOT, 0x100), 0); // num_pages
    static const unsigned sizes[] = {64, 64, 64, 0, 64, 0};
    for (unsigned i = 0; i < 6; i++) {
        set_reg(SLOT, 0x30, i);
        CHECK_EQ(reg(SLOT, 0x34), sizes[i]);
    }
}

static void report_waits_for_go(void) {
    machine_start();
    balloon_start(REPORTS);
    add_chain(&queue, (struct buffer[]){{page(0), 4 * PAGE_SIZE, true}, {page(8), PAGE_SIZE, true}}, 2);
    kick(&queue);
    check_released();
    CHECK_EQ(released_pages.count, 2);
    expect_range(0, page(0), 4 * PAGE_SIZE);
    expect_range(1, page(8), PAGE_SIZE);
    for (unsigned i = 0; i < 10; i++)
        CHECK_EQ(code_dropped[256 + i], i < 4 || i == 8);
    CHECK(!answered());
    kick(&queue);
    devices_poll(~0ull);
    set_reg(SLOT, 0x64, 1);
    CHECK(!answered());
    CHECK_EQ(released_pages.count, 2);
    go_was_there();
    CHECK(answered());
    CHECK(!answered());
    CHECK(line[SLOT + 1]);
    CHECK_EQ(released_pages.count, 0);
}

// The queue's number by the specification, which Linux does not keep to.
static void report_on_queue_four(void) {
    machine_start();
    balloon_start(4);
    report(page(1), PAGE_SIZE);
    expect_range(0, page(1), PAGE_SIZE);
    go_was_there();
    CHECK(answered());
}

// A second chain waits for the first, then has its turn without another notification.
static void one_report_at_a_time(void) {
    machine_start();
    balloon_start(REPORTS);
    report(page(0), PAGE_SIZE);
    report(page(5), PAGE_SIZE);
    CHECK_EQ(released_pages.count, 1);
    go_was_there();
    CHECK(answered());
    CHECK(!answered());
    CHECK_EQ(released_pages.count, 1);
    expect_range(0, page(5), PAGE_SIZE);
    go_was_there();
    CHECK(answered());
    CHECK(!answered());
}

static void only_whole_pages(void) {
    static const struct { uint64_t gpa; uint32_t len; uint64_t first; uint32_t size; } cases[] = {
        {16, PAGE_SIZE, 0, 0},
        {16, 2 * PAGE_SIZE, PAGE_SIZE, PAGE_SIZE},
        {0, 2 * PAGE_SIZE - 1, 0, PAGE_SIZE},
        {PAGE_SIZE - 1, PAGE_SIZE + 1, PAGE_SIZE, PAGE_SIZE},
        {0, 1, 0, 0},
    };
    machine_start();
    balloon_start(REPORTS);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        report(page(0) + cases[i].gpa, cases[i].len);
        CHECK_EQ(released_pages.count, cases[i].size != 0);
        if (cases[i].size != 0) {
            expect_range(0, page(0) + cases[i].first, cases[i].size);
            go_was_there();
        }
        CHECK(answered());
    }
}

static void all_of_ram(void) {
    machine_start();
    balloon_start(REPORTS);
    report(RAM_BASE, RAM_SIZE);
    expect_range(0, RAM_BASE, RAM_SIZE);
    CHECK_EQ(code_dropped[RAM_SIZE / PAGE_SIZE - 1], 1);
    go_was_there(); // the test's memory still has the rings; a real guest would find zeroes there, its own fault
    CHECK(answered());
}

// What one report makes Go do is bounded, however often it names the same pages.
static void report_is_bounded(void) {
    machine_start();
    balloon_start(REPORTS);
    struct buffer buffers[QUEUE];
    uint64_t total = 0;
    for (unsigned chains = 0; chains < 4; chains++) {
        for (unsigned i = 0; i < QUEUE; i++)
            buffers[i] = (struct buffer){RAM_BASE, RAM_SIZE, true};
        add_chain(&queue, buffers, QUEUE);
        kick(&queue);
        check_released();
        total = 0;
        for (uint32_t i = 0; i < released_pages.count; i++)
            total += released_pages.range[i].size;
        CHECK(total > 0 && total <= RAM_SIZE);
        go_was_there();
        CHECK(answered());
    }
}

// A driver that starts anew owns its pages: nothing of what was reported before is dropped any more.
static void reset_forgets(void) {
    machine_start();
    balloon_start(REPORTS);
    report(page(0), PAGE_SIZE);
    CHECK_EQ(released_pages.count, 1);
    set_reg(SLOT, 0x70, 0);
    CHECK_EQ(released_pages.count, 0);
    devices_poll(~0ull);
    CHECK(!answered());
    balloon_start(REPORTS);
    CHECK(!answered());
    report(page(1), PAGE_SIZE);
    go_was_there();
    CHECK(answered());
}

// The queue that waits for its answer is switched off meanwhile.
static void queue_disabled_while_held(void) {
    machine_start();
    balloon_start(REPORTS);
    report(page(0), PAGE_SIZE);
    set_reg(SLOT, 0x30, REPORTS);
    set_reg(SLOT, 0x44, 0);
    go_was_there();
    CHECK(!answered());
    check_writes();
}

static void deterministic_releases_nothing(void) {
    machine_configure();
    config.clock_mode = CLOCK_INSTRUCTIONS;
    devices_init();
    balloon_start(REPORTS);
    report(page(0), 16 * PAGE_SIZE);
    CHECK_EQ(released_pages.count, 0);
    CHECK(answered());
}

static void inflate_and_deflate(void) {
    machine_start();
    for (unsigned index = 0; index < 2; index++) {
        balloon_start(index);
        const uint32_t numbers[] = {0x80100, 0x80101, 0xffffffff};
        uint64_t list = guest_alloc(sizeof numbers);
        guest_write(list, numbers, sizeof numbers);
        add_chain(&queue, (struct buffer[]){{list, sizeof numbers, false}}, 1);
        kick(&queue);
        CHECK(answered());
        CHECK(line[SLOT + 1]);
        CHECK_EQ(released_pages.count, 0);
        virtio_mmio_write(SLOT, 0x104, 2, 4); // actual
        CHECK_EQ(reg(SLOT, 0x104), 2);
    }
    virtio_mmio_write(SLOT, 0x100, 9, 4); // num_pages is the device's
    virtio_mmio_write(SLOT, 0x108, 9, 4);
    virtio_mmio_write(SLOT, 0xffc, ~0ull, 8);
    CHECK_EQ(reg(SLOT, 0x100), 0);
    CHECK_EQ(reg(SLOT, 0x108), 0);
    CHECK_EQ(reg(SLOT, 0x104), 2);
}

static void refuse(unsigned index, uint64_t gpa, uint32_t len, bool writable) {
    machine_start();
    balloon_start(index);
    add_chain(&queue, (struct buffer[]){{gpa, len, writable}}, 1);
    kick(&queue);
    CHECK(needs_reset(SLOT));
    CHECK_EQ(released_pages.count, 0);
    devices_poll(~0ull);
    CHECK(!answered());
    check_writes();
}

static void refuses_wrong_chains(void) {
    refuse(REPORTS, page(0), PAGE_SIZE, false);                         // nothing writable
    refuse(REPORTS, RAM_BASE + RAM_SIZE - PAGE_SIZE, 2 * PAGE_SIZE, true); // beyond the end
    refuse(REPORTS, RAM_BASE - PAGE_SIZE, 2 * PAGE_SIZE, true);
    refuse(REPORTS, RAM_BASE + RAM_SIZE, PAGE_SIZE, true);
    refuse(REPORTS, 0, PAGE_SIZE, true);
    refuse(REPORTS, RAM_BASE, 0, true);
    refuse(REPORTS, RAM_BASE, UINT32_MAX, true);
    refuse(REPORTS, UINT64_MAX - PAGE_SIZE + 1, PAGE_SIZE, true);
    refuse(0, page(0), 3, false);  // not whole page numbers
    refuse(1, page(0), 16, true);  // none at all
}

const struct test balloon_tests[] = {
    {"balloon/offers reporting only", offers_reporting_only},
    {"balloon/a report waits for Go", report_waits_for_go},
    {"balloon/a report on queue 4", report_on_queue_four},
    {"balloon/one report at a time", one_report_at_a_time},
    {"balloon/only whole pages", only_whole_pages},
    {"balloon/all of RAM", all_of_ram},
    {"balloon/a report is bounded", report_is_bounded},
    {"balloon/a reset forgets", reset_forgets},
    {"balloon/queue disabled while held", queue_disabled_while_held},
    {"balloon/deterministic releases nothing", deterministic_releases_nothing},
    {"balloon/inflate and deflate", inflate_and_deflate},
    {"balloon/refuses wrong chains", refuses_wrong_chains},
    {0},
};
