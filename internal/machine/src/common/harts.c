// Several harts: the lock, the mail between them, and how one starts, stops and waits. See harts.h.
#include "hart.h"

static struct hart_state *harts[MAX_HARTS]; // of a module for several
static uint32_t count = 1;

uint32_t hart_count(void) { return count; }

struct hart_state *hart_numbered(uint32_t number) { return MAX_HARTS == 1 ? &hart : harts[number]; }

#ifndef AGENTVM_HARTS
void machine_lock(void) {}
void machine_unlock(void) {}
void harts_interrupt(uint32_t number) { (void)number; }
uint32_t harts_power(uint32_t number) { return (void)number, HART_ON; }
bool harts_others_on(void) { return false; }
bool harts_start(uint32_t number, uint64_t pc, uint64_t argument) { return (void)number, (void)pc, (void)argument, false; }
void harts_post_translation(uint64_t what) { (void)what; }
void harts_post_code(uint32_t frame) { (void)frame; }
void harts_wait(void) {}

void exchange_128(void *at, const uint64_t expected[2], const uint64_t value[2], uint64_t found[2]) {
    uint64_t *pair = at;
    found[0] = pair[0];
    found[1] = pair[1];
    if (found[0] != expected[0] || found[1] != expected[1]) return;
    pair[0] = value[0];
    pair[1] = value[1];
}
#else
// The host's part: another goroutine gets its turn; the goroutine of a hart continues.
__attribute__((import_module("harts"), import_name("pause"))) void host_pause(void);
__attribute__((import_module("harts"), import_name("wake"))) void host_wake(uint32_t number);

// host_exchange_128 is what WebAssembly has no operation for. operands are six words: what is expected, what is to be stored, and what was found.
__attribute__((import_module("harts"), import_name("exchange_128"))) void host_exchange_128(void *at, uint64_t *operands);

void exchange_128(void *at, const uint64_t expected[2], const uint64_t value[2], uint64_t found[2]) {
    uint64_t operands[6] = {expected[0], expected[1], value[0], value[1]};
    host_exchange_128(at, operands);
    found[0] = operands[4];
    found[1] = operands[5];
}

static uint32_t lock;

void machine_lock(void) {
    for (uint32_t open = 0; !__atomic_compare_exchange_n(&lock, &open, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); open = 0) host_pause();
}

void machine_unlock(void) { __atomic_store_n(&lock, 0, __ATOMIC_SEQ_CST); }

// harts_make has the memory of all harts but the first, whose place the module has. Each has `stack` bytes below it.
bool harts_make(uint32_t number, uint32_t stack) {
    count = number;
    harts[0] = &hart;
    for (uint32_t i = 1; i < number; i++) {
        uint8_t *at = grow_memory(stack + sizeof(struct hart_state));
        if (at == NULL) return false;
        harts[i] = (struct hart_state *)(at + stack);
        harts[i]->number = i;
        harts[i]->power = HART_OFF;
    }
    return true;
}

static void call_attention(struct hart_state *to) {
    __atomic_store_n(&to->mail.attention, 1, __ATOMIC_SEQ_CST);
    if (to->mail.idle) {
        to->mail.idle = 0;
        host_wake(to->number);
    }
}

void harts_interrupt(uint32_t number) { call_attention(harts[number]); }

uint32_t harts_power(uint32_t number) { return harts[number]->power; }

bool harts_others_on(void) {
    for (uint32_t i = 0; i < count; i++)
        if (i != hart.number && harts[i]->power != HART_OFF) return true;
    return false;
}

bool harts_start(uint32_t number, uint64_t pc, uint64_t argument) {
    struct hart_state *h = harts[number];
    if (h->power != HART_OFF) return false;
    h->power = HART_STARTING;
    h->start_pc = pc;
    h->start_argument = argument;
    call_attention(h);
    return true;
}

static void posted(struct hart_state *to) {
    to->mail.posted++;
    if (to->mail.running) call_attention(to);
    else __atomic_store_n(&to->mail.attention, 1, __ATOMIC_SEQ_CST); // it looks before it executes anything
}

void harts_post_translation(uint64_t what) {
    if (count == 1) return;
    machine_lock();
    for (uint32_t i = 0; i < count; i++) {
        struct hart_mail *mail = &harts[i]->mail;
        if (i == hart.number) continue;
        if (mail->translations < HART_MAIL) mail->translation[mail->translations] = what;
        if (mail->translations <= HART_MAIL) mail->translations++;
        posted(harts[i]);
    }
    machine_unlock();
}

void harts_post_code(uint32_t frame) {
    if (count == 1) return;
    machine_lock();
    for (uint32_t i = 0; i < count; i++) {
        struct hart_mail *mail = &harts[i]->mail;
        if (i == hart.number) continue;
        if (frame == ALL_CODE) mail->frames = HART_MAIL + 1;
        if (mail->frames < HART_MAIL) mail->frame[mail->frames] = frame;
        if (mail->frames <= HART_MAIL) mail->frames++;
        posted(harts[i]);
    }
    machine_unlock();
}

// attend does what was asked for, with the lock.
static void attend(void) {
    struct hart_mail *mail = &hart.mail;
    __atomic_store_n(&mail->attention, 0, __ATOMIC_SEQ_CST);
    if (mail->translations > HART_MAIL) tlb_flush_all();
    else
        for (uint32_t i = 0; i < mail->translations; i++) forget_translation(mail->translation[i]);
    if (mail->frames > HART_MAIL) code_drop_all();
    else
        for (uint32_t i = 0; i < mail->frames; i++) code_drop(mail->frame[i]);
    mail->translations = mail->frames = 0;
    mail->done = mail->posted;
    if (hart.power == HART_STARTING) {
        processor_start(hart.start_pc, hart.start_argument);
        hart.power = HART_ON;
    }
    hart.recheck = 1;
}

void harts_attend(void) {
    if (__atomic_load_n(&hart.mail.attention, __ATOMIC_SEQ_CST) == 0) return;
    machine_lock();
    attend();
    machine_unlock();
}

void harts_wait(void) {
    for (uint32_t i = 0; i < count; i++) {
        const struct hart_mail *mail = &harts[i]->mail;
        while (i != hart.number && __atomic_load_n(&mail->running, __ATOMIC_SEQ_CST) && __atomic_load_n(&mail->done, __ATOMIC_SEQ_CST) != __atomic_load_n(&mail->posted, __ATOMIC_SEQ_CST)) {
            harts_attend(); // the other one may wait for this one
            host_pause();
        }
    }
}

// hold and let_go have Go change what is under the lock, between two slices of one of the harts.
__attribute__((export_name("hold"))) void hold(void) { machine_lock(); }
__attribute__((export_name("let_go"))) void let_go(void) { machine_unlock(); }

// harts_enter begins a slice. false: the hart is off.
bool harts_enter(void) {
    machine_lock();
    hart.mail.running = 1;
    attend();
    if (hart.power == HART_OFF) hart.mail.running = 0;
    machine_unlock();
    return hart.mail.running;
}

// harts_leave ends a slice. true: the hart waits for its next timer, or until it is woken.
bool harts_leave(bool waits) {
    machine_lock();
    hart.mail.running = 0;
    hart.mail.idle = hart.power == HART_OFF || (waits && hart.mail.attention == 0);
    machine_unlock();
    return hart.mail.idle;
}
#endif
