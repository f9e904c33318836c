// The goldfish RTC as Linux's rtc-goldfish drives it: nanoseconds since 1970 in two registers. The guest may set the
// clock; the difference to the host's is kept here. An alarm can be stored and read back, and never fires.
#include "virtio.h"

enum {
    REG_TIME_LOW = 0x00, // reading it latches TIME_HIGH; writing it sets the clock, with the last TIME_HIGH written
    REG_TIME_HIGH = 0x04,
    REG_ALARM_LOW = 0x08, // writing it arms the alarm
    REG_ALARM_HIGH = 0x0c,
    REG_IRQ_ENABLED = 0x10,
    REG_CLEAR_ALARM = 0x14,
    REG_ALARM_STATUS = 0x18, // 1 while an alarm is armed
    REG_CLEAR_INTERRUPT = 0x1c,
};

static struct {
    uint64_t offset; // nanoseconds, modulo 2^64, by which the guest's clock is ahead of the host's
    uint32_t time_high, set_high;
    uint32_t alarm_low, alarm_high, alarm_armed, irq_enabled;
} rtc;

void rtc_init(void) { __builtin_memset(&rtc, 0, sizeof rtc); }

static uint32_t read_time(void) {
    uint64_t now = realtime_nanoseconds() + rtc.offset;
    rtc.time_high = (uint32_t)(now >> 32);
    return (uint32_t)now;
}

uint64_t rtc_read(uint32_t offset, unsigned size) {
    if (size != 4)
        return 0;
    switch (offset) {
    case REG_TIME_LOW: return read_time();
    case REG_TIME_HIGH: return rtc.time_high;
    case REG_ALARM_LOW: return rtc.alarm_low;
    case REG_ALARM_HIGH: return rtc.alarm_high;
    case REG_IRQ_ENABLED: return rtc.irq_enabled;
    case REG_ALARM_STATUS: return rtc.alarm_armed;
    }
    return 0;
}

void rtc_write(uint32_t offset, uint64_t value, unsigned size) {
    if (size != 4)
        return;
    switch (offset) {
    case REG_TIME_LOW: rtc.offset = ((uint64_t)rtc.set_high << 32 | (uint32_t)value) - realtime_nanoseconds(); break;
    case REG_TIME_HIGH: rtc.set_high = (uint32_t)value; break;
    case REG_ALARM_LOW:
        rtc.alarm_low = (uint32_t)value;
        rtc.alarm_armed = 1;
        break;
    case REG_ALARM_HIGH: rtc.alarm_high = (uint32_t)value; break;
    case REG_IRQ_ENABLED: rtc.irq_enabled = value & 1; break;
    case REG_CLEAR_ALARM: rtc.alarm_armed = 0; break;
    }
}

struct memory_range rtc_state(void) { return memory_range(&rtc, sizeof rtc); }

bool rtc_adopt(const void *from) {
    __builtin_memcpy(&rtc, from, sizeof rtc);
    return true;
}
