// Cases of the interpreter: loads, stores and the commonest atomics.
        case OP_LB: LOAD(uint8_t, int8_t); d += 2; break;
        case OP_LH: LOAD(u16, int16_t); d += 2; break;
        case OP_LBU: LOAD(uint8_t, uint8_t); d += 2; break;
        case OP_LHU: LOAD(u16, uint16_t); d += 2; break;
        case OP_LWU: LOAD(u32, uint32_t); d += 2; break;
        case OP_LW: LOAD(u32, int32_t); d += 2; break;
        case OP_LD: LOAD(u64, int64_t); d += 2; break;
        case OP_C_LW:
        case OP_C_LWSP: LOAD(u32, int32_t); d += 1; break;
        case OP_C_LD:
        case OP_C_LDSP: LOAD(u64, int64_t); d += 1; break;
        case OP_LOAD_X0:
            slow_load(RS1 + (uint64_t)IMM, 1u << (d->rs2 & 3));
            if (hart.cause != CAUSE_NONE) goto exception;
            d += 2;
            break;
        case OP_SB: STORE(uint8_t); d += 2; break;
        case OP_SH: STORE(u16); d += 2; break;
        case OP_SW: STORE(u32); d += 2; break;
        case OP_SD: STORE(u64); d += 2; break;
        case OP_C_SW:
        case OP_C_SWSP: STORE(u32); d += 1; break;
        case OP_C_SD:
        case OP_C_SDSP: STORE(u64); d += 1; break;
        case OP_FLW: FP_LOAD(u32, 0xffffffff00000000ull); d += 2; break;
        case OP_FLD: FP_LOAD(u64, 0); d += 2; break;
        case OP_C_FLD:
        case OP_C_FLDSP: FP_LOAD(u64, 0); d += 1; break;
        case OP_FSW: FP_STORE(u32); d += 2; break;
        case OP_FSD: FP_STORE(u64); d += 2; break;
        case OP_C_FSD:
        case OP_C_FSDSP: FP_STORE(u64); d += 1; break;
        case OP_AMOADD_W:
        case OP_AMOADD_D:
        case OP_AMOSWAP_W:
        case OP_AMOSWAP_D:
        case OP_LR_W:
        case OP_LR_D:
        case OP_SC_W:
        case OP_SC_D:
            if (!execute_amo(d)) goto exception;
            if (hart.recheck) goto stored;
            d += 2;
            break;
