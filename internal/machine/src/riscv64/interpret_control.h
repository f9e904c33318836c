// Cases of the interpreter: branches, jumps, and what happens between slots.
        BRANCH(OP_BEQ, 2, RS1 == RS2)
        BRANCH(OP_BNE, 2, RS1 != RS2)
        BRANCH(OP_BLT, 2, (int64_t)RS1 < (int64_t)RS2)
        BRANCH(OP_BGE, 2, (int64_t)RS1 >= (int64_t)RS2)
        BRANCH(OP_BLTU, 2, RS1 < RS2)
        BRANCH(OP_BGEU, 2, RS1 >= RS2)
        BRANCH(OP_C_BEQZ, 1, RS1 == 0)
        BRANCH(OP_C_BNEZ, 1, RS1 != 0)
        case OP_J:
            d = (const struct insn *)((const uint8_t *)d + SLOT_IMM);
            break;
        case OP_JAL:
            RD = PC() + 4;
            d = (const struct insn *)((const uint8_t *)d + SLOT_IMM);
            break;
        case OP_JUMP_FAR:
            pc = PC();
            RD = pc + 4;
            hart.x[0] = 0;
            pc += (uint64_t)IMM;
            goto jump;
        case OP_BRANCH_FAR:
            if (branch_taken(SLOT_IMM & 7, RS1, RS2)) {
                pc = PC() + (uint64_t)(int64_t)(SLOT_IMM >> 4);
                goto jump;
            }
            d += (SLOT_IMM & 8) != 0 ? 2 : 1;
            break;
        case OP_JUMP_COUNTED:
            pc = PC();
            RD = pc + 4;
            hart.x[0] = 0;
            d = (const struct insn *)((const uint8_t *)d + SLOT_IMM * 4);
            goto counted;
        case OP_BRANCH_COUNTED:
            if (branch_taken(SLOT_IMM & 7, RS1, RS2)) {
                d = (const struct insn *)((const uint8_t *)d + (SLOT_IMM >> 4) * 4);
                goto counted;
            }
            d += (SLOT_IMM & 8) != 0 ? 2 : 1;
            break;
        case OP_JR:
        case OP_C_JR:
            pc = (RS1 + (uint64_t)IMM) & ~1ull;
            goto jump;
        case OP_JALR:
            pc = (RS1 + (uint64_t)IMM) & ~1ull;
            RD = PC() + 4;
            goto jump;
        case OP_C_JALR:
            pc = RS1 & ~1ull;
            RD = PC() + 2;
            goto jump;
        case OP_PAGE_END:
            n++; // not an instruction
            pc = PC();
            if (TLB_ENTRY(code, pc)->tag != (pc & PAGE_MASK)) goto jump;
            d = &((const struct code_page *)(uintptr_t)TLB_ENTRY(code, pc)->addend)->slot[(pc & (PAGE_SIZE - 1)) >> 1];
            pc_base = pc - ((uint32_t)(uintptr_t)d >> 2);
            goto counted; // as a jump: translations end with their page, and at what only this interpreter executes
        case OP_UNDECODED:
            n++;
            code_decode(d);
            break;
        case OP_TRANSLATED:
            hart.budget = n + 1;
            hart.pc = PC();
            d = jit_run(d);
            n = hart.budget;
            pc = hart.pc;
            if (hart.cause != CAUSE_NONE) goto exception_at_pc;
            if (d == NULL && hart.recheck) goto resume;
            if (d == NULL) goto jump;
            pc_base = pc - ((uint32_t)(uintptr_t)d >> 2);
            break;
        case OP_CROSSING: {
            uint64_t here = PC();
            n++;
            if (hart.stop) {
                hart.pc = here;
                goto leave;
            }
            if (!prepare_crossing(here, (struct insn *)d)) {
                pc = here;
                goto exception_at_pc;
            }
            d = hart.crossing;
            pc_base = here - ((uint32_t)(uintptr_t)d >> 2);
            break;
        }
