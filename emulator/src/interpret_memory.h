// Cases of the interpreter: loads and stores.
        LOAD(OP_LBU, uint8_t, uint8_t, 4)
        LOAD(OP_LHU, u16, uint16_t, 4)
        LOAD(OP_LW, u32, int32_t, 4)
        LOAD(OP_LWU, u32, uint32_t, 4)
        LOAD(OP_LD, u64, int64_t, 4)
        LOAD(OP_C_LW, u32, int32_t, 2)
        LOAD(OP_C_LWSP, u32, int32_t, 2)
        LOAD(OP_C_LD, u64, int64_t, 2)
        LOAD(OP_C_LDSP, u64, int64_t, 2)
        STORE(OP_SB, uint8_t, 4)
        STORE(OP_SH, u16, 4)
        STORE(OP_SW, u32, 4)
        STORE(OP_SD, u64, 4)
        STORE(OP_C_SW, u32, 2)
        STORE(OP_C_SWSP, u32, 2)
        STORE(OP_C_SD, u64, 2)
        STORE(OP_C_SDSP, u64, 2)
        FP_LOAD(OP_FLD, 4)
        FP_LOAD(OP_C_FLD, 2)
        FP_LOAD(OP_C_FLDSP, 2)
        FP_STORE(OP_FSD, 4)
        FP_STORE(OP_C_FSD, 2)
        FP_STORE(OP_C_FSDSP, 2)
        case OP_LB:
        case OP_LH:
        case OP_FLW:
        case OP_FSW:
        case OP_LOAD_X0: MISS(4);
