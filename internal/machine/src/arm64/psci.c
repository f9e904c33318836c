// The power state coordination interface by HVC, answered by the machine itself.
// Source: Arm Power State Coordination Interface (DEN 0022), SMC Calling Convention (DEN 0028).
#include "hart.h"
#include "system.h"

enum {
    PSCI_VERSION = 0x84000000u,
    CPU_SUSPEND = 0x84000001u,
    CPU_OFF = 0x84000002u,
    CPU_ON = 0x84000003u,
    AFFINITY_INFO = 0x84000004u,
    MIGRATE_INFO_TYPE = 0x84000006u,
    SYSTEM_OFF = 0x84000008u,
    SYSTEM_RESET = 0x84000009u,
    PSCI_FEATURES = 0x8400000au,
    SMCCC_VERSION = 0x80000000u,
    WIDE = 0x40000000u, // of functions that take 64-bit arguments
};

enum { SUCCESS = 0, NOT_SUPPORTED = -1, INVALID_PARAMETERS = -2, DENIED = -3, ALREADY_ON = -4 };

static bool known(uint32_t function) {
    switch (function) {
    case PSCI_VERSION: case CPU_SUSPEND: case CPU_SUSPEND | WIDE: case CPU_OFF: case CPU_ON: case CPU_ON | WIDE: case AFFINITY_INFO:
    case AFFINITY_INFO | WIDE: case MIGRATE_INFO_TYPE: case SYSTEM_OFF: case SYSTEM_RESET: case PSCI_FEATURES: case SMCCC_VERSION:
        return true;
    default: return false;
    }
}

// Processors have the affinities 0.0.0 and their number.
static int64_t processor_on(uint64_t target, uint64_t entry, uint64_t context) {
    if (target >= hart_count()) return INVALID_PARAMETERS;
    machine_lock();
    bool was_off = harts_start((uint32_t)target, entry, context);
    machine_unlock();
    return was_off ? SUCCESS : ALREADY_ON;
}

// processor_off is denied to the last one, which SYSTEM_OFF is for.
static int64_t processor_off(void) {
    machine_lock();
    bool denied = !harts_others_on();
    if (!denied) hart.power = HART_OFF;
    machine_unlock();
    if (denied) return DENIED;
    machine_yield();
    return SUCCESS;
}

static int64_t affinity_info(uint64_t target) {
    enum { ON = 0, OFF = 1, ON_PENDING = 2 };
    static const uint8_t answers[] = {[HART_ON] = ON, [HART_OFF] = OFF, [HART_STARTING] = ON_PENDING};
    if (target >= hart_count()) return INVALID_PARAMETERS;
    machine_lock();
    uint32_t power = harts_power((uint32_t)target);
    machine_unlock();
    return answers[power];
}

static int64_t call(uint32_t function) {
    enum { POWER_STATE_UNKNOWN = 0xfffe0000 }; // of a higher level than the processor, or reserved
    uint64_t first = function & WIDE ? hart.x[1] : (uint32_t)hart.x[1];
    switch (function) {
    case PSCI_VERSION: return 1 << 16 | 1;
    case SMCCC_VERSION: return 1 << 16 | 1;
    case CPU_SUSPEND: case CPU_SUSPEND | WIDE:
        if ((first & POWER_STATE_UNKNOWN) != 0) return INVALID_PARAMETERS;
        hart.wait = 1; // all states are standby
        return SUCCESS;
    case CPU_OFF: return processor_off();
    case CPU_ON: return processor_on(first, (uint32_t)hart.x[2], (uint32_t)hart.x[3]);
    case CPU_ON | WIDE: return processor_on(first, hart.x[2], hart.x[3]);
    case AFFINITY_INFO: case AFFINITY_INFO | WIDE: return affinity_info(first);
    case MIGRATE_INFO_TYPE: return 2; // no Trusted OS
    case SYSTEM_OFF: hart.stop = RUN_POWER_OFF; return SUCCESS;
    case SYSTEM_RESET: hart.stop = RUN_REBOOT; return SUCCESS;
    case PSCI_FEATURES: return known((uint32_t)first) ? SUCCESS : NOT_SUPPORTED;
    default: return NOT_SUPPORTED;
    }
}

void psci_call(void) {
    hart.recheck = 1;
    hart.x[0] = (uint64_t)call((uint32_t)hart.x[0]);
}
