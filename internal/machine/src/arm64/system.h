// What system registers and instructions lead to.
#ifndef AGENTVM_SYSTEM_H
#define AGENTVM_SYSTEM_H

#include "hart.h"

// mmu.c
uint64_t address_translate(uint64_t va, bool write, unsigned el);
void tlb_invalidate_address(uint64_t va);
bool frame_at(uint64_t va, uint32_t *frame); // of RAM, as code or data

// gic.c: the CPU interface's registers, by the encoding in bits 20 to 5 of MRS and MSR; false: there is none. And those of the distributor and the
// redistributor.
bool gic_register_read(unsigned encoding, uint64_t *value);
bool gic_register_write(unsigned encoding, uint64_t value);
uint64_t gic_distributor_read(uint32_t offset, uint32_t size);
void gic_distributor_write(uint32_t offset, uint64_t value, uint32_t size);
uint64_t gic_redistributor_read(uint32_t offset, uint32_t size);
void gic_redistributor_write(uint32_t offset, uint64_t value, uint32_t size);
void gic_set_private(unsigned interrupt, bool level); // of a timer
bool gic_private(unsigned interrupt);
void gic_reset(void);

void psci_call(void); // psci.c

#endif
