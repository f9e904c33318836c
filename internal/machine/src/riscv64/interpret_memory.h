// Cases of the interpreter: loads and stores.
        LOAD(OP_LB, uint8_t, int8_t, 4)
        LOAD(OP_LH, unaligned16, int16_t, 4)
        LOAD(OP_LBU, uint8_t, uint8_t, 4)
        LOAD(OP_LHU, unaligned16, uint16_t, 4)
        LOAD(OP_LW, unaligned32, int32_t, 4)
        LOAD(OP_LWU, unaligned32, uint32_t, 4)
        LOAD(OP_LD, unaligned64, int64_t, 4)
        LOAD(OP_C_LW, unaligned32, int32_t, 2)
        LOAD(OP_C_LWSP, unaligned32, int32_t, 2)
        LOAD(OP_C_LD, unaligned64, int64_t, 2)
        STORE(OP_SB, uint8_t, 4)
        STORE(OP_SH, unaligned16, 4)
        STORE(OP_SW, unaligned32, 4)
        STORE(OP_SD, unaligned64, 4)
        STORE(OP_C_SW, unaligned32, 2)
        STORE(OP_C_SWSP, unaligned32, 2)
        STORE(OP_C_SD, unaligned64, 2)
        FP_LOAD(OP_FLD, 4)
        FP_LOAD(OP_C_FLD, 2)
        FP_LOAD(OP_C_FLDSP, 2)
        FP_STORE(OP_FSD, 4)
        FP_STORE(OP_C_FSD, 2)
        FP_STORE(OP_C_FSDSP, 2)
        case OP_FLW:
        case OP_FSW:
        case OP_LOAD_X0: MISS(4);
        LOAD_RUN(OP_C_LDSP, unaligned64, 2)
        case OP_C_ADDI16SP: // a new frame, into which registers are saved next
            RD = RS1 + (uint64_t)IMM;
            d += 1;
            if (SLOT_IMM >= 0 || !FOLLOWED_BY(OP_C_SDSP)) break;
            // fall through
        STORE_RUN(OP_C_SDSP, unaligned64, 2)
