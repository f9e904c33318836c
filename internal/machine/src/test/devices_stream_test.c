// Console and virtio-fs: the devices whose bytes go to and from streams as they are.
#include "devices_test.h"

// Console --------------------------------------------------------------------------------------------------------

static struct queue in[3], out[3], control_in, control_out;

static const unsigned sizes[] = {16, 32, 16, 32, 32, 64, 64, 64};

static void console_start(uint64_t features) {
    driver_start(0, features | 2);
    for (unsigned port = 0; port < 3; port++) {
        unsigned index = port ? 2 + 2 * port : 0;
        in[port] = queue_setup(0, index, sizes[index]);
        out[port] = queue_setup(0, index + 1, sizes[index + 1]);
    }
    control_in = queue_setup(0, 2, 16);
    control_out = queue_setup(0, 3, 32);
    driver_ok(0);
}

static void say(uint32_t port, uint16_t event, uint16_t value) {
    uint8_t message[8];
    uint32_t head, len;
    store32(message, port);
    store16(message + 4, event);
    store16(message + 6, value);
    uint64_t buffer = guest_alloc(8);
    guest_write(buffer, message, 8);
    add_chain(&control_out, (struct buffer[]){{buffer, 8, false}}, 1);
    kick(&control_out);
    CHECK(next_used(&control_out, &head, &len));
}

static uint64_t control_buffers[16];

static void give_control_buffers(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        uint64_t buffer = guest_alloc(64);
        control_buffers[control_in.next_descriptor % 16] = buffer;
        add_chain(&control_in, (struct buffer[]){{buffer, 64, true}}, 1);
    }
    kick(&control_in);
}

static void expect_event(uint32_t port, uint16_t event, const char *name) {
    uint32_t head, len;
    CHECK(next_used(&control_in, &head, &len));
    const uint8_t *message = guest(control_buffers[head]);
    CHECK_EQ(load32(message), port);
    CHECK_EQ(load16(message + 4), event);
    CHECK_EQ(load16(message + 6), 1);
    CHECK_EQ(len, 8 + strlen(name));
    CHECK(memcmp(message + 8, name, strlen(name)) == 0);
}

static void console_handshake(void) {
    uint32_t head, len;
    machine_start();
    console_start(0);
    CHECK_EQ(virtio_mmio_read(0, 0x104, 4), 3);
    give_control_buffers(2);
    say(0, 0, 1); // DEVICE_READY
    expect_event(0, 1, "");
    expect_event(1, 1, "");
    CHECK(!next_used(&control_in, &head, &len)); // no buffer for the third
    give_control_buffers(10);
    expect_event(2, 1, "");
    say(0, 3, 1); // PORT_READY
    expect_event(0, 4, "");
    expect_event(0, 6, "");
    say(1, 3, 1);
    expect_event(1, 7, "agentvm.control");
    expect_event(1, 6, "");
    say(2, 3, 1);
    expect_event(2, 7, "agentvm.bulk");
    expect_event(2, 6, "");
    say(7, 3, 1); // a port that does not exist
    say(0xffffffff, 6, 1);
    CHECK(!next_used(&control_in, &head, &len));
    CHECK(!needs_reset(0));
}

static void console_without_bulk(void) {
    machine_configure();
    config.bulk_fd = -1;
    devices_init();
    console_start(0);
    give_control_buffers(4);
    uint32_t head, len;
    say(0, 0, 1);
    expect_event(0, 1, "");
    expect_event(1, 1, "");
    say(2, 3, 1);
    CHECK(!next_used(&control_in, &head, &len));
}

static uint64_t send_text(unsigned port, const char *text, unsigned pieces) {
    uint32_t len = (uint32_t)strlen(text);
    uint64_t buffer = guest_alloc(len);
    struct buffer buffers[8];
    guest_write(buffer, text, len);
    for (unsigned i = 0; i < pieces; i++)
        buffers[i] = (struct buffer){buffer + len * i / pieces, len * (i + 1) / pieces - len * i / pieces, false};
    add_chain(&out[port], buffers, pieces);
    return buffer;
}

static void expect_out(int fd, const char *text) {
    CHECK_EQ(streams[fd].out_end, strlen(text));
    CHECK(memcmp(streams[fd].out, text, strlen(text)) == 0);
}

static void console_writes(void) {
    uint32_t head, len;
    machine_start();
    console_start(0);
    send_text(0, "hello, ", 3);
    send_text(0, "console\n", 1);
    kick(&out[0]);
    expect_out(FD_OUT, "hello, console\n");
    CHECK_EQ(streams[FD_OUT].writes, 1); // one call for the batch
    CHECK(next_used(&out[0], &head, &len) && next_used(&out[0], &head, &len));
    send_text(1, "request", 2);
    kick(&out[1]);
    expect_out(FD_CONTROL, "request");
}

static void console_write_back_pressure(void) {
    uint32_t head, len;
    machine_start();
    console_start(VIRTIO_F_EVENT_IDX);
    streams[FD_CONTROL].out_room = 5;
    send_text(1, "abc", 1);
    send_text(1, "defghi", 3);
    send_text(1, "jkl", 1);
    kick(&out[1]);
    expect_out(FD_CONTROL, "abcde");
    CHECK(next_used(&out[1], &head, &len));
    CHECK(!next_used(&out[1], &head, &len));
    CHECK_EQ(guest_read16(out[1].used + 4 + 8 * out[1].size), 0); // no notification wanted while the host is full
    uint32_t writes = streams[FD_CONTROL].writes;
    kick(&out[1]);
    devices_poll(1ull << FD_BULK);
    CHECK_EQ(streams[FD_CONTROL].writes, writes); // nothing is tried before the ready bit
    streams[FD_CONTROL].out_room = 2;
    devices_poll(1ull << FD_CONTROL);
    expect_out(FD_CONTROL, "abcdefg");
    streams[FD_CONTROL].out_room = UINT32_MAX;
    devices_poll(1ull << FD_CONTROL);
    expect_out(FD_CONTROL, "abcdefghijkl");
    CHECK(next_used(&out[1], &head, &len) && next_used(&out[1], &head, &len));
    CHECK_EQ(guest_read16(out[1].used + 4 + 8 * out[1].size), 3);
    send_text(1, "mn", 1);
    kick(&out[1]);
    expect_out(FD_CONTROL, "abcdefghijklmn");
    check_writes();
}

static void console_write_to_closed_host(void) {
    uint32_t head, len;
    machine_start();
    console_start(0);
    streams[FD_OUT].error = WASI_EBADF;
    send_text(0, "lost", 1);
    kick(&out[0]);
    CHECK(next_used(&out[0], &head, &len)); // the guest must not wait for ever
}

static uint64_t receive_buffer(unsigned port, uint32_t len) {
    uint64_t buffer = guest_alloc(len);
    add_chain(&in[port], (struct buffer[]){{buffer, len, true}}, 1);
    return buffer;
}

static void console_reads(void) {
    uint32_t head, len;
    machine_start();
    console_start(0);
    uint64_t first = receive_buffer(1, 4), second = receive_buffer(1, 4);
    host_send(FD_CONTROL, "0123456789", 10);
    kick(&in[1]);
    devices_poll(1ull << FD_CONTROL);
    CHECK(!next_used(&in[1], &head, &len)); // the guest has not opened the port
    say(1, 6, 1);
    CHECK(next_used(&in[1], &head, &len));
    CHECK_EQ(len, 4);
    CHECK(next_used(&in[1], &head, &len));
    CHECK_EQ(len, 4);
    CHECK(memcmp(guest(first), "0123", 4) == 0 && memcmp(guest(second), "4567", 4) == 0);
    uint64_t third = receive_buffer(1, 4); // the rest comes without another ready bit
    kick(&in[1]);
    CHECK(next_used(&in[1], &head, &len));
    CHECK_EQ(len, 2);
    CHECK(memcmp(guest(third), "89", 2) == 0);
    receive_buffer(1, 4);
    kick(&in[1]);
    uint32_t reads = streams[FD_CONTROL].reads;
    receive_buffer(1, 4);
    kick(&in[1]);
    CHECK_EQ(streams[FD_CONTROL].reads, reads); // EAGAIN was seen
    say(1, 6, 0);
    host_send(FD_CONTROL, "x", 1);
    devices_poll(1ull << FD_CONTROL);
    CHECK(!next_used(&in[1], &head, &len)); // closed again
}

static void console_single_port(void) {
    uint32_t head, len;
    machine_start();
    driver_start(0, 0); // no MULTIPORT
    in[0] = queue_setup(0, 0, 16);
    out[0] = queue_setup(0, 1, 16);
    driver_ok(0);
    uint64_t buffer = receive_buffer(0, 16);
    kick(&in[0]);
    host_send(FD_IN, "ls\n", 3);
    devices_poll(1ull << FD_IN);
    CHECK(next_used(&in[0], &head, &len));
    CHECK_EQ(len, 3);
    CHECK(memcmp(guest(buffer), "ls\n", 3) == 0);
}

static void console_end_of_file(void) {
    uint32_t head, len;
    machine_start();
    console_start(0);
    say(1, 6, 1);
    receive_buffer(1, 16);
    kick(&in[1]);
    streams[FD_CONTROL].read_max = 0; // reads succeed with nothing
    host_send(FD_CONTROL, "x", 1);
    devices_poll(1ull << FD_CONTROL);
    uint32_t reads = streams[FD_CONTROL].reads;
    kick(&in[1]);
    CHECK_EQ(streams[FD_CONTROL].reads, reads);
    streams[FD_CONTROL].read_max = UINT32_MAX; // opened again
    devices_poll(1ull << FD_CONTROL);
    CHECK(next_used(&in[1], &head, &len));
    CHECK_EQ(len, 1);
}

// Buffers of the guest that break a promise of the device's protocol, rather than of the ring.
static void console_bad_buffers(void) {
    machine_start();
    console_start(0);
    uint64_t buffer = guest_alloc(16);
    add_chain(&in[1], (struct buffer[]){{buffer, 16, false}}, 1); // nothing to write to
    say(1, 6, 1);
    CHECK(needs_reset(0));

    machine_start();
    console_start(0);
    add_chain(&control_in, (struct buffer[]){{buffer, 7, true}}, 1); // too short for an event
    say(0, 0, 1);
    CHECK(needs_reset(0));

    machine_start();
    console_start(0);
    streams[FD_CONTROL].out_room = 6;
    send_text(1, "0123456789", 1);
    kick(&out[1]);
    put_descriptor(&out[1], 0, buffer, 2, 0, 0); // shorter than what the host has taken of it
    streams[FD_CONTROL].out_room = UINT32_MAX;
    devices_poll(1ull << FD_CONTROL);
    CHECK(needs_reset(0));
}

static void console_no_output(void) {
    uint32_t head, len;
    machine_configure();
    config.console_out_fd = -1;
    devices_init();
    console_start(0);
    send_text(0, "lost", 1);
    kick(&out[0]);
    CHECK(next_used(&out[0], &head, &len));
}

static void console_scatters(void) {
    uint32_t head, len;
    machine_start();
    console_start(0);
    say(2, 6, 1);
    uint64_t buffer = guest_alloc(64);
    add_chain(&in[2], (struct buffer[]){{buffer, 3, true}, {buffer + 16, 2, true}, {buffer + 32, 30, true}}, 3);
    kick(&in[2]);
    host_send(FD_BULK, "abcdefg", 7);
    devices_poll(1ull << FD_BULK);
    CHECK(next_used(&in[2], &head, &len));
    CHECK_EQ(len, 7);
    CHECK(memcmp(guest(buffer), "abc", 3) == 0 && memcmp(guest(buffer + 16), "de", 2) == 0);
    CHECK(memcmp(guest(buffer + 32), "fg", 2) == 0);
    check_writes();
}

static void console_reset_forgets(void) {
    machine_start();
    console_start(0);
    streams[FD_CONTROL].out_room = 1;
    send_text(1, "abc", 1);
    kick(&out[1]);
    streams[FD_CONTROL].out_room = UINT32_MAX;
    streams[FD_CONTROL].out_end = 0;
    console_start(0);
    send_text(1, "xyz", 1);
    kick(&out[1]);
    expect_out(FD_CONTROL, "xyz");
}

// virtio-fs ------------------------------------------------------------------------------------------------------

static struct queue share, high_priority;

static void share_start(void) {
    driver_start(SLOT_SHARE, VIRTIO_F_INDIRECT_DESC);
    high_priority = queue_setup(SLOT_SHARE, 0, 16);
    share = queue_setup(SLOT_SHARE, 1, 128);
    driver_ok(SLOT_SHARE);
}

// make_message makes a request, whose header has 40 bytes, or a reply, whose header has 16.
static uint32_t make_message(uint8_t *to, uint32_t header, uint64_t unique, const char *body) {
    uint32_t size = header + (uint32_t)strlen(body);
    memset(to, 0, header);
    store32(to, size);
    store64(to + 8, unique);
    memcpy(to + header, body, size - header);
    return size;
}

enum { REQUEST = 40, REPLY = 16 };

// ask makes a request available and gives the place of its reply.
static uint64_t ask(uint64_t unique, const char *body, uint32_t room) {
    uint8_t message[256];
    uint32_t size = make_message(message, REQUEST, unique, body);
    uint64_t request = guest_alloc(size), reply = guest_alloc(room);
    guest_write(request, message, size);
    add_chain(&share, (struct buffer[]){{request, 5, false}, {request + 5, size - 5, false}, {reply, 4, true},
                                        {reply + 4, room - 4, true}}, 4);
    kick(&share);
    return reply;
}

static void respond(uint64_t unique, const char *body) {
    uint8_t message[256];
    host_send(FD_SHARE, message, make_message(message, REPLY, unique, body));
}

static void expect_reply(uint64_t reply, const char *body) {
    uint32_t head, len;
    CHECK(next_used(&share, &head, &len));
    CHECK_EQ(len, REPLY + strlen(body));
    CHECK(memcmp(guest(reply) + REPLY, body, strlen(body)) == 0);
}

static void share_replies_out_of_order(void) {
    uint32_t head, len;
    machine_start();
    share_start();
    uint64_t one = ask(1, "first", 64), two = ask(2, "second request", 64);
    streams[FD_SHARE].reads = 0;
    CHECK_EQ(streams[FD_SHARE].out_end, 45 + 54);
    CHECK(memcmp(streams[FD_SHARE].out + 40, "first", 5) == 0);
    CHECK(memcmp(streams[FD_SHARE].out + 85, "second request", 14) == 0);
    respond(2, "zwei");
    respond(9, "unasked here");
    respond(1, "eins!");
    devices_poll(1ull << FD_SHARE);
    CHECK(next_used(&share, &head, &len));
    CHECK_EQ(head, 4);
    CHECK_EQ(len, 20);
    CHECK(memcmp(guest(two) + 16, "zwei", 4) == 0);
    CHECK(next_used(&share, &head, &len));
    CHECK_EQ(head, 0);
    CHECK_EQ(len, 21);
    CHECK(memcmp(guest(one) + 16, "eins!", 5) == 0);
    CHECK(!next_used(&share, &head, &len));
    CHECK_EQ(streams[FD_SHARE].reads, 2); // all three at once, then EAGAIN
    check_writes();
}

static void share_pieces(void) {
    uint32_t head, len;
    machine_start();
    share_start();
    streams[FD_SHARE].out_room = 3;
    uint64_t reply = ask(5, "abcdefgh", 64);
    ask(6, "next", 64);
    CHECK_EQ(streams[FD_SHARE].out_end, 3);
    for (unsigned i = 0; i < 100; i++) {
        streams[FD_SHARE].out_room = 1;
        devices_poll(1ull << FD_SHARE);
    }
    uint8_t want[128];
    uint32_t size = make_message(want, REQUEST, 5, "abcdefgh");
    size += make_message(want + size, REQUEST, 6, "next");
    CHECK_EQ(streams[FD_SHARE].out_end, size);
    CHECK(memcmp(streams[FD_SHARE].out, want, size) == 0);
    respond(5, "reply in pieces");
    uint32_t end = streams[FD_SHARE].in_end;
    for (streams[FD_SHARE].in_end = 1; streams[FD_SHARE].in_end < end; streams[FD_SHARE].in_end++) {
        devices_poll(1ull << FD_SHARE);
        CHECK(!next_used(&share, &head, &len));
    }
    devices_poll(1ull << FD_SHARE);
    CHECK(next_used(&share, &head, &len));
    CHECK_EQ(len, 31);
    CHECK(memcmp(guest(reply) + 16, "reply in pieces", 15) == 0);
}

static void expect_error(uint64_t reply, uint64_t unique) {
    uint32_t head, len;
    CHECK(next_used(&share, &head, &len));
    CHECK_EQ(len, REPLY);
    CHECK_EQ(load32(guest(reply)), REPLY);
    CHECK_EQ((int32_t)load32(guest(reply) + 4), -5);
    CHECK_EQ(load64(guest(reply) + 8), unique);
}

static void share_reply_too_large(void) {
    machine_start();
    share_start();
    uint64_t reply = ask(5, "", 16);
    respond(5, "longer than sixteen");
    devices_poll(1ull << FD_SHARE);
    expect_error(reply, 5);
    CHECK(!needs_reset(SLOT_SHARE));
}

static void share_server_breaks_framing(void) {
    machine_start();
    share_start();
    uint64_t reply = ask(5, "", 16);
    host_send(FD_SHARE, "\17\0\0\0\0\0\0\0\5\0\0\0\0\0\0", 16);
    devices_poll(1ull << FD_SHARE);
    expect_error(reply, 5);
    expect_error(ask(6, "", 16), 6);
}

static void share_server_gone(void) {
    machine_start();
    share_start();
    streams[FD_SHARE].out_room = 0;
    uint64_t reply = ask(5, "", 16);
    streams[FD_SHARE].error = WASI_EIO;
    devices_poll(1ull << FD_SHARE);
    expect_error(reply, 5);
}

// The chain that waits is changed so that it has no room for an answer.
static void share_chain_changed(void) {
    machine_start();
    share_start();
    uint64_t reply = ask(5, "", 64);
    put_descriptor(&share, 0, reply, 8, 2, 0);
    respond(5, "more than one byte");
    devices_poll(1ull << FD_SHARE);
    CHECK(needs_reset(SLOT_SHARE));

    machine_start();
    share_start();
    ask(5, "", 64);
    put_descriptor(&share, 0, 0, 8, 2, 0);
    respond(5, "");
    devices_poll(1ull << FD_SHARE);
    CHECK(needs_reset(SLOT_SHARE));

    machine_start();
    share_start();
    ask(5, "", 64);
    put_descriptor(&share, 0, 0, 8, 2, 0);
    streams[FD_SHARE].error = WASI_EIO;
    devices_poll(1ull << FD_SHARE);
    CHECK(needs_reset(SLOT_SHARE));
}

static void share_fails_while_sending(void) {
    machine_start();
    share_start();
    streams[FD_SHARE].error = WASI_EIO;
    expect_error(ask(5, "", 64), 5);
}

static void share_head_twice(void) {
    machine_start();
    share_start();
    ask(5, "", 64);
    make_available(&share, 0);
    kick(&share);
    CHECK(needs_reset(SLOT_SHARE));
}

static void share_reset_keeps_stream(void) {
    uint32_t head, len;
    machine_start();
    share_start();
    streams[FD_SHARE].out_room = 3;
    ask(5, "old request", 64);
    share_start();
    uint64_t reply = ask(5, "new", 64);
    streams[FD_SHARE].out_room = UINT32_MAX;
    devices_poll(1ull << FD_SHARE);
    uint8_t want[128];
    uint32_t size = make_message(want, REQUEST, 5, "old request");
    size += make_message(want + size, REQUEST, 5, "new");
    CHECK_EQ(streams[FD_SHARE].out_end, size);
    CHECK(memcmp(streams[FD_SHARE].out, want, size) == 0);
    respond(5, "ok");
    devices_poll(1ull << FD_SHARE);
    CHECK(next_used(&share, &head, &len));
    CHECK(memcmp(guest(reply) + 16, "ok", 2) == 0);
}

static void share_bad_size(void) {
    machine_start();
    share_start();
    uint8_t message[REQUEST];
    make_message(message, REQUEST, 1, "");
    message[0]++; // says 41, has 40
    uint64_t request = guest_alloc(REQUEST);
    guest_write(request, message, REQUEST);
    add_chain(&share, (struct buffer[]){{request, REQUEST, false}}, 1);
    kick(&share);
    CHECK(needs_reset(SLOT_SHARE));
    CHECK_EQ(streams[FD_SHARE].out_end, 0);
}

// A request that went out in part, one that waits for its reply and one whose reply came in part: all get EIO once the
// machine is restored, and the next request goes to the new server from its first byte.
static void share_restored_refuses(void) {
    uint32_t head, len;
    machine_start();
    share_start();
    uint64_t waits = ask(5, "first", 64), half_answered = ask(6, "second", 64);
    respond(6, "a reply");
    streams[FD_SHARE].in_end -= 3;
    devices_poll(1ull << FD_SHARE);
    streams[FD_SHARE].out_room = 4;
    uint64_t half_sent = ask(7, "third", 64), not_sent = ask(8, "fourth", 64);
    CHECK(!next_used(&share, &head, &len));
    struct stream *stream = &streams[FD_SHARE];
    stream->in_at = stream->in_end = stream->out_end = 0;
    stream->out_room = UINT32_MAX;
    share_restored();
    check_writes();
    expect_error(waits, 5);
    expect_error(half_answered, 6);
    expect_error(half_sent, 7);
    CHECK(!next_used(&share, &head, &len));
    CHECK(reg(SLOT_SHARE, 0x60) & 1); // the guest is interrupted
    devices_poll(~0ull);
    uint8_t want[128];
    uint32_t size = make_message(want, REQUEST, 8, "fourth");
    CHECK_EQ(stream->out_end, size);
    CHECK(memcmp(stream->out, want, size) == 0);
    respond(8, "ok");
    devices_poll(1ull << FD_SHARE);
    CHECK(next_used(&share, &head, &len));
    CHECK(memcmp(guest(not_sent) + 16, "ok", 2) == 0);
}

// The server of the old machine was gone; the new machine has one.
static void share_restored_after_death(void) {
    uint32_t head, len;
    machine_start();
    share_start();
    streams[FD_SHARE].error = WASI_EIO;
    expect_error(ask(5, "", 64), 5);
    streams[FD_SHARE].error = 0;
    share_restored();
    uint64_t reply = ask(6, "", 64);
    respond(6, "ok");
    devices_poll(1ull << FD_SHARE);
    CHECK(next_used(&share, &head, &len));
    CHECK(memcmp(guest(reply) + 16, "ok", 2) == 0);
}

// A reply of which the buffer has the beginning continues straight into its chain, whatever the pieces.
static void share_large_reply(void) {
    enum { SIZE = 300000 };
    static uint8_t message[SIZE];
    uint32_t head, len;
    for (uint32_t piece = 7777; piece < 3 * SIZE; piece += 100000) {
        machine_start();
        share_start();
        uint64_t small = ask(1, "", 32), large = ask(2, "", SIZE), after = ask(3, "", 32);
        make_message(message, REPLY, 2, "");
        store32(message, SIZE);
        for (uint32_t i = REPLY; i < SIZE; i++)
            message[i] = (uint8_t)(i * 7 >> 3);
        respond(1, "one");
        host_send(FD_SHARE, message, SIZE);
        respond(3, "three");
        streams[FD_SHARE].read_max = piece;
        for (unsigned i = 0; i < 1000 && !(load32(guest(after)) == REPLY + 5); i++)
            devices_poll(1ull << FD_SHARE);
        expect_reply(small, "one");
        CHECK(next_used(&share, &head, &len));
        CHECK_EQ(len, SIZE);
        CHECK(memcmp(guest(large), message, SIZE) == 0);
        expect_reply(after, "three");
        check_writes();
    }
}

// What wants no reply returns when it was sent, in either queue; so does whatever is asked with high priority.
static void share_without_reply(void) {
    uint8_t message[64];
    uint32_t head, len;
    machine_start();
    share_start();
    uint64_t request = guest_alloc(48), room = guest_alloc(32);
    guest_write(request, message, make_message(message, REQUEST, 1, "forget"));
    add_chain(&share, (struct buffer[]){{request, 46, false}}, 1);
    kick(&share);
    CHECK(next_used(&share, &head, &len));
    CHECK_EQ(len, 0);
    add_chain(&high_priority, (struct buffer[]){{request, 46, false}, {room, 32, true}}, 2);
    kick(&high_priority);
    CHECK(next_used(&high_priority, &head, &len));
    CHECK_EQ(len, 0);
    CHECK_EQ(streams[FD_SHARE].out_end, 2 * 46);
    respond(1, "nothing waits");
    uint64_t reply = ask(1, "", 32);
    CHECK(!next_used(&high_priority, &head, &len));
    respond(1, "ok");
    devices_poll(1ull << FD_SHARE);
    expect_reply(reply, "nothing waits"); // the server sent it, and the number is the guest's choice
    streams[FD_SHARE].error = WASI_EIO;
    devices_poll(1ull << FD_SHARE);
    add_chain(&share, (struct buffer[]){{request, 46, false}}, 1);
    kick(&share);
    CHECK(next_used(&share, &head, &len));
    CHECK_EQ(len, 0);
}

static void respond_to_one(void) { respond(1, "at once"); }

// A reply that comes soon is there when the notification returns, also behind one that no program waits for.
static void share_replies_at_once(void) {
    machine_start();
    share_start();
    streams[FD_SHARE].while_waiting = respond_to_one;
    expect_reply(ask(1, "", 64), "at once");
    CHECK_EQ(streams[FD_SHARE].waits, 1);
    CHECK(line[SLOT_SHARE + 1]);
    streams[FD_SHARE].while_waiting = NULL;
    streams[FD_SHARE].in_at = streams[FD_SHARE].in_end = 0;
}

// After a wait without a reply the next requests do not wait, twice as many each time, until a reply comes within one.
static void share_waits_seldom(void) {
    machine_start();
    share_start();
    for (unsigned i = 0; i < 10; i++) {
        ask(2 + i, "", 64);
        devices_poll(0); // the next slice, which may wait again
    }
    CHECK_EQ(streams[FD_SHARE].waits, 3); // the first, the third and the sixth
    streams[FD_SHARE].while_waiting = respond_to_one;
    expect_reply(ask(1, "", 64), "at once");
    CHECK_EQ(streams[FD_SHARE].waits, 4);
    streams[FD_SHARE].while_waiting = NULL;
    streams[FD_SHARE].waits = 0;
    for (unsigned i = 0; i < 3; i++)
        ask(60 + i, "", 64);
    CHECK_EQ(streams[FD_SHARE].waits, 2);
}

// A slice that has no work left does not wait.
static void share_waits_are_work(void) {
    machine_start();
    share_start();
    uint32_t before = work_left();
    ask(2, "", 64);
    CHECK_EQ(streams[FD_SHARE].waits, 1);
    CHECK(before - work_left() >= 50000);
    share_start(); // waits again
    work_done(work_left() - 1000); // enough to send
    ask(3, "", 64);
    CHECK_EQ(streams[FD_SHARE].waits, 1);
}

// No program waits for the reply to RELEASE: neither does the device, and the driver hears of it in the next slice, or with another reply.
static void share_release(void) {
    uint8_t message[64];
    uint32_t head, len;
    machine_start();
    share_start();
    for (unsigned i = 0; i < 2; i++) {
        uint64_t request = guest_alloc(48), reply = guest_alloc(32);
        uint32_t size = make_message(message, REQUEST, 7, "");
        store32(message + 4, 18);
        guest_write(request, message, size);
        add_chain(&share, (struct buffer[]){{request, size, false}, {reply, 32, true}}, 2);
        kick(&share);
        CHECK_EQ(streams[FD_SHARE].waits, 0);
        respond(7, "");
        devices_poll(1ull << FD_SHARE);
        CHECK(next_used(&share, &head, &len));
        CHECK_EQ(len, REPLY);
        CHECK(!line[SLOT_SHARE + 1]);
        CHECK(devices_behind());
        if (i == 1) {
            streams[FD_SHARE].while_waiting = respond_to_one;
            expect_reply(ask(1, "", 64), "at once");
        } else {
            devices_poll(0);
        }
        CHECK(line[SLOT_SHARE + 1]);
        set_reg(SLOT_SHARE, 0x64, 1);
        CHECK(!line[SLOT_SHARE + 1]);
        devices_poll(0);
        CHECK(!devices_behind());
    }
}

// The driver is reset, or takes its queue away, in the middle of a reply: what is left of it is dropped, and the next one is whole.
static void share_reset_in_reply(void) {
    for (unsigned disable = 0; disable < 2; disable++) {
        enum { SIZE = 20000 };
        static uint8_t message[SIZE];
        machine_start();
        share_start();
        uint64_t large = ask(2, "", SIZE);
        make_message(message, REPLY, 2, "");
        store32(message, SIZE);
        memset(message + REPLY, 'x', SIZE - REPLY);
        host_send(FD_SHARE, message, SIZE);
        streams[FD_SHARE].in_end -= 5000;
        devices_poll(1ull << FD_SHARE);
        CHECK_EQ(guest(large)[SIZE - 5001], 'x');
        streams[FD_SHARE].in_end += 5000;
        if (disable) {
            set_reg(SLOT_SHARE, 0x30, 1);
            set_reg(SLOT_SHARE, 0x44, 0);
            share = queue_setup(SLOT_SHARE, 1, 128);
        } else {
            share_start();
        }
        uint64_t reply = ask(2, "", 64);
        respond(2, "ok");
        for (unsigned i = 0; i < 4; i++)
            devices_poll(1ull << FD_SHARE);
        expect_reply(reply, "ok");
        CHECK_EQ(guest(large)[SIZE - 1], 0);
        CHECK(!needs_reset(SLOT_SHARE));
    }
}

const struct test stream_tests[] = {
    {"console/handshake", console_handshake},
    {"console/without bulk port", console_without_bulk},
    {"console/writes", console_writes},
    {"console/write back-pressure", console_write_back_pressure},
    {"console/write to a closed host", console_write_to_closed_host},
    {"console/reads when open", console_reads},
    {"console/scatters", console_scatters},
    {"console/single port", console_single_port},
    {"console/end of file", console_end_of_file},
    {"console/bad buffers", console_bad_buffers},
    {"console/no output", console_no_output},
    {"console/reset forgets a half-written chain", console_reset_forgets},
    {"virtio-fs/replies out of order", share_replies_out_of_order},
    {"virtio-fs/messages in pieces", share_pieces},
    {"virtio-fs/reply too large", share_reply_too_large},
    {"virtio-fs/server breaks framing", share_server_breaks_framing},
    {"virtio-fs/server gone", share_server_gone},
    {"virtio-fs/reset keeps the stream whole", share_reset_keeps_stream},
    {"virtio-fs/request of wrong size", share_bad_size},
    {"virtio-fs/waiting chain changed", share_chain_changed},
    {"virtio-fs/server fails while sending", share_fails_while_sending},
    {"virtio-fs/chain made available twice", share_head_twice},
    {"virtio-fs/restored with requests under way", share_restored_refuses},
    {"virtio-fs/restored after the server's death", share_restored_after_death},
    {"virtio-fs/large reply", share_large_reply},
    {"virtio-fs/without reply", share_without_reply},
    {"virtio-fs/replies at once", share_replies_at_once},
    {"virtio-fs/waits seldom", share_waits_seldom},
    {"virtio-fs/waits are work", share_waits_are_work},
    {"virtio-fs/release", share_release},
    {"virtio-fs/reset in the middle of a reply", share_reset_in_reply},
    {0},
};
