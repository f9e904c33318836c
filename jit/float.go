package jit

func floatEmitters() map[string]*emitter { return nil }
