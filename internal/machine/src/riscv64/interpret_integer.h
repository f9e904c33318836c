// Cases of the interpreter: the commoner operations on registers; execute_alu.c has the others.
        ALU(OP_LUI, (uint64_t)IMM)
        case OP_AUIPC:
            RD = PC() + (uint64_t)IMM;
            d += 2;
            if (!FOLLOWED_BY(OP_ADDI)) break;
            RD = RS1 + (uint64_t)IMM;
            d += 2;
            break;
        ALU(OP_LI, (uint64_t)IMM)
        ALU(OP_SLTIU, RS1 < (uint64_t)IMM)
        ALU(OP_XORI, RS1 ^ (uint64_t)IMM)
        ALU(OP_SLTU, RS1 < RS2)
        ALU(OP_SLLIW, SEXT32((uint32_t)RS1 << SLOT_IMM))
        ALU(OP_SRLIW, SEXT32((uint32_t)RS1 >> SLOT_IMM))
        BOTH(OP_ADDI, OP_C_ADDI, +, (uint64_t)IMM)
        BOTH(OP_ANDI, OP_C_ANDI, &, (uint64_t)IMM)
        BOTH(OP_SLLI, OP_C_SLLI, <<, SLOT_IMM)
        BOTH(OP_SRLI, OP_C_SRLI, >>, SLOT_IMM)
        BOTH(OP_ADD, OP_C_ADD, +, RS2)
        BOTH(OP_SUB, OP_C_SUB, -, RS2)
        BOTH(OP_XOR, OP_C_XOR, ^, RS2)
        BOTH(OP_OR, OP_C_OR, |, RS2)
        BOTH(OP_AND, OP_C_AND, &, RS2)
        BOTH_WORD(OP_ADDIW, OP_C_ADDIW, +, (uint64_t)IMM)
        BOTH_WORD(OP_ADDW, OP_C_ADDW, +, RS2)
        BOTH_WORD(OP_SUBW, OP_C_SUBW, -, RS2)
        case OP_C_SRAI: RD = (uint64_t)((int64_t)RD >> SLOT_IMM); d += 1; break;
        case OP_C_ADDI4SPN: RD = RS1 + (uint64_t)IMM; d += 1; break;
        case OP_C_LI:
        case OP_C_LUI: RD = (uint64_t)IMM; d += 1; break;
        case OP_C_MV:
            do {
                RD = RS2;
                d += 1;
            } while (FOLLOWED_BY(OP_C_MV));
            break;
        case OP_FENCE:
        case OP_NOP: d += 2; break;
        case OP_C_NOP:
        case OP_C_NOP2: d += 1; break;
        ALU(OP_SLTI, (int64_t)RS1 < IMM)
        ALU(OP_ORI, RS1 | (uint64_t)IMM)
        ALU(OP_SRAI, (uint64_t)((int64_t)RS1 >> SLOT_IMM))
        ALU(OP_SRAIW, SEXT32((int32_t)RS1 >> SLOT_IMM))
        ALU(OP_SLT, (int64_t)RS1 < (int64_t)RS2)
        ALU(OP_SLL, RS1 << (RS2 & 63))
        ALU(OP_SRL, RS1 >> (RS2 & 63))
        ALU(OP_SRA, (uint64_t)((int64_t)RS1 >> (RS2 & 63)))
        ALU(OP_MUL, RS1 * RS2)
        ALU(OP_MULW, SEXT32(RS1 * RS2))
